"""litellm, with the model's name for any server that speaks OpenAI's chats."""

from __future__ import annotations

import json
from typing import Any

import litellm
from common import BOTH, CITY, HELLO, THINK, WEATHER, refuses, run, same
from openai_sdk import FUNCTIONS, RESULTS, City

litellm.drop_params = False


def say(url: str, messages: list[Any], **options: Any) -> Any:
    asked = {"api_base": f"{url}/v1", "api_key": "none", "num_retries": 0, **options}
    return litellm.completion(model="openai/default", messages=messages, **asked)


def user(words: str) -> Any:
    return {"role": "user", "content": words}


def chat(url: str) -> None:
    same(say(url, [user(HELLO)]).choices[0].message.content, HELLO)


def stream(url: str) -> None:
    chunks = say(url, [user(HELLO)], stream=True)
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks), HELLO)


def tools(url: str, words: str = WEATHER, num_calls: int = 1) -> None:
    given = [{"type": "function", "function": each} for each in FUNCTIONS]
    said = say(url, [user(words)], tools=given).choices[0].message
    assert len(said.tool_calls) == num_calls, said
    messages = [user(words), said]
    for call in said.tool_calls:
        content = RESULTS[call.function.name]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    same(say(url, messages, tools=given).choices[0].message.content, words)


def structured(url: str) -> None:
    said = say(url, [user(CITY)], response_format=City).choices[0].message.content
    City.model_validate(json.loads(said))


def thinking(url: str) -> None:
    message = say(url, [user(THINK)]).choices[0].message
    same(message.content, THINK)
    assert message.reasoning_content.strip() == "Hm."


def errors(url: str) -> None:
    refuses(lambda: say(url, [user("a")], temperature=9), litellm.BadRequestError)


if __name__ == "__main__":
    run(
        {
            "chat": chat,
            "stream": stream,
            "tools": tools,
            "parallel": lambda url: tools(url, BOTH, 2),
            "structured": structured,
            "thinking": thinking,
            "errors": errors,
        }
    )
