// Vercel's AI SDK: its provider for OpenAI (responses by default), and the one for any server.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [HELLO, WEATHER, BOTH, CITY] = [
  "Say hello, please.", "How is the weather?", "Weather and time, please.", "Which city is it?",
];
const SAID = { [HELLO]: "Hello there.", [WEATHER]: "It snows in Oslo.", [BOTH]: "Snow at noon." };
const url = process.argv[2];
const place = z.object({ city: z.string() });
const tools = {
  get_weather: tool({ description: "The weather.", inputSchema: place, execute: async () => "Snow." }),
  get_time: tool({ description: "The time.", inputSchema: place, execute: async () => "Noon." }),
};
const responses = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" })("default");
const chats = createOpenAICompatible({ name: "keepwarm", baseURL: `${url}/v1`, supportsStructuredOutputs: true })("default");
const messages = createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })("default");

function same(said, words) {
  if (said.trim() !== SAID[words]) throw new Error(JSON.stringify(said));
}
const ask = (model, words, more = {}) => async () => {
  const asked = { model, prompt: words, maxRetries: 0, maxOutputTokens: 300, ...more };
  same((await generateText(asked)).text, words);
};
const loop = (model, words) => ask(model, words, { tools, stopWhen: stepCountIs(3) });
const stream = (model) => async () => {
  const running = streamText({ model, prompt: HELLO, maxRetries: 0, maxOutputTokens: 300 });
  let said = "";
  for await (const part of running.textStream) said += part;
  same(said, HELLO);
};
const structured = (model) => async () => {
  const schema = z.object({ sunny: z.boolean() });
  const made = await generateObject({ model, schema, prompt: CITY, maxRetries: 0, maxOutputTokens: 300 });
  if (typeof made.object.sunny !== "boolean") throw new Error(JSON.stringify(made.object));
};
const errors = (model) => async () => {
  try {
    await generateText({ model, prompt: HELLO, temperature: 9, maxRetries: 0 });
  } catch (error) {
    if (error.statusCode === 400) return;
    throw error;
  }
  throw new Error("nothing was refused");
};

const checks = {};
for (const [kind, model] of [["responses ", responses], ["", chats], ["messages ", messages]]) {
  checks[`${kind}chat`] = ask(model, HELLO);
  checks[`${kind}stream`] = stream(model);
  checks[`${kind}tools`] = loop(model, WEATHER);
  checks[`${kind}parallel`] = loop(model, BOTH);
  checks[`${kind}structured`] = structured(model);
}
checks["errors"] = errors(chats);

const told = {};
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    told[name] = "ok";
  } catch (error) {
    told[name] = `${error}\n${error.responseBody ?? ""}\n${JSON.stringify(error.requestBodyValues ?? null)}`.slice(0, 1500);
  }
}
console.log(JSON.stringify(told));
