"""Anthropic's own SDK."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic, BadRequestError
from common import BOTH, HELLO, THINK, WEATHER, refuses, run, same

RESULTS = {"get_weather": "Snow.", "get_time": "Noon."}
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [{"name": name, "input_schema": PLACE} for name in RESULTS]


def say(url: str, messages: list[Any], **options: Any) -> Any:
    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    return client.messages.create(model="default", max_tokens=200, messages=messages, **options)


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


def chat(url: str) -> None:
    same(say(url, [user(HELLO)]).content[0].text, HELLO)


def stream(url: str) -> None:
    client = Anthropic(base_url=url, api_key="none", max_retries=0)
    asked: Any = {"model": "default", "max_tokens": 200, "messages": [user(HELLO)]}
    with client.messages.stream(**asked) as events:
        same("".join(events.text_stream), HELLO)


def tools(url: str, words: str = WEATHER, num_calls: int = 1) -> None:
    first = say(url, [user(words)], tools=TOOLS)
    calls = [block for block in first.content if block.type == "tool_use"]
    assert len(calls) == num_calls, first.content
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": RESULTS[call.name]}
        for call in calls
    ]
    history = [user(words), {"role": "assistant", "content": first.content}, user(results)]
    same(say(url, history, tools=TOOLS).content[-1].text, words)


def thinking(url: str) -> None:
    thought, said = say(url, [user(THINK)]).content
    assert thought.thinking.strip() == "Hm."
    same(said.text, THINK)


def errors(url: str) -> None:
    refuses(lambda: say(url, []), BadRequestError)


if __name__ == "__main__":
    run(
        {
            "chat": chat,
            "stream": stream,
            "tools": tools,
            "parallel": lambda url: tools(url, BOTH, 2),
            "thinking": thinking,
            "errors": errors,
        }
    )
