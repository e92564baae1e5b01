// The official npm SDK against a server of ours: node anthropic_sdk.mjs URL
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const model = "any";
const schema = { type: "object", properties: { city: { enum: ["Paris", "Oslo"] } }, required: ["city"] };
const weather = { name: "get_weather", description: "The weather.", input_schema: schema };
const time = { name: "get_time", input_schema: { type: "object", properties: {} } };
const tools = [weather, time];

const ask = (words, more = {}) => ({
  model, max_tokens: 64, messages: [{ role: "user", content: words }], ...more,
});
const kinds = (message) => message.content.map((block) => block.type);

// Whole
const plain = await client.messages.create(ask("Plain?"));
assert.equal(plain.content[0].text, "Plainly.");
assert.equal(plain.stop_reason, "end_turn");
assert.ok(plain._request_id);

// Streams, as the helper puts them together
for (const words of ["Plain?", "Think!", "Call!", "Both!", "Think and call!", "Stop!"]) {
  const options = { tools, stop_sequences: ["STOP"] };
  const whole = await client.messages.create(ask(words, options));
  const stream = client.messages.stream(ask(words, options));
  let events = 0;
  stream.on("streamEvent", () => { events += 1; });
  const streamed = await stream.finalMessage();
  assert.ok(events > 4);
  const strip = (blocks) => blocks.map(({ id, ...rest }) => rest);
  assert.deepEqual(strip(streamed.content), strip(whole.content), words);
  assert.equal(streamed.stop_reason, whole.stop_reason);
  const sum = ({ usage }) => usage.input_tokens + usage.cache_read_input_tokens;
  assert.equal(sum(streamed), sum(whole));
}

// A call, and its result with the thought before it
const called = await client.messages.create(ask("Think and call!", { tools }));
assert.deepEqual(kinds(called), ["thinking", "tool_use"]);
const answered = await client.messages.create({
  ...ask("", { tools }),
  messages: [
    { role: "user", content: "Think and call!" },
    { role: "assistant", content: called.content },
    { role: "user", content: [
      { type: "tool_result", tool_use_id: called.content[1].id, content: "Snow." },
      { type: "text", text: "Plain?" },
    ] },
  ],
});
assert.equal(answered.content[0].text, "Plainly.");
assert.ok(answered.usage.cache_read_input_tokens > 0);

// Parallel calls
assert.deepEqual(kinds(await client.messages.create(ask("Both!", { tools }))), ["tool_use", "tool_use"]);

// Counting, models, errors
assert.ok((await client.messages.countTokens({ model, messages: ask("Hi").messages })).input_tokens > 0);
for await (const card of client.models.list()) assert.equal(card.type, "model");
await assert.rejects(
  client.messages.create(ask("Hi", { max_tokens: 0 })),
  (error) => error instanceof Anthropic.BadRequestError && error.error.type === "error",
);

// Cancel
const going = client.messages.stream(ask("Go on and on", { max_tokens: 3000 }));
going.on("text", () => going.abort());
going.on("thinking", () => going.abort());
await assert.rejects(going.finalMessage(), Anthropic.APIUserAbortError);

console.log("all is well");
