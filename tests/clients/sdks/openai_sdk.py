"""OpenAI's own SDK: chats and responses."""

from __future__ import annotations

import json
from typing import Any

from common import BOTH, CITY, HELLO, THINK, WEATHER, refuses, run, same
from openai import BadRequestError, OpenAI
from pydantic import BaseModel

RESULTS = {"get_weather": "Snow.", "get_time": "Noon."}
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTIONS: list[Any] = [
    {"name": "get_weather", "description": "The weather.", "parameters": PLACE},
    {"name": "get_time", "description": "The time.", "parameters": PLACE},
]


class City(BaseModel):
    sunny: bool


def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def user(words: str) -> Any:
    return {"role": "user", "content": words}


def chat(url: str) -> None:
    answer = client(url).chat.completions.create(model="default", messages=[user(HELLO)])
    same(answer.choices[0].message.content, HELLO)


def stream(url: str) -> None:
    asked = {"model": "default", "messages": [user(HELLO)]}
    with client(url).chat.completions.stream(**asked) as events:
        for _ in events:
            pass
        same(events.get_final_completion().choices[0].message.content, HELLO)


def tools(url: str, words: str = WEATHER, num_calls: int = 1) -> None:
    messages = [user(words)]
    given = [{"type": "function", "function": each} for each in FUNCTIONS]
    create = client(url).chat.completions.create
    said = create(model="default", messages=messages, tools=given).choices[0].message
    calls = said.tool_calls or []
    assert len(calls) == num_calls, said
    messages.append(said)
    for call in calls:
        assert json.loads(call.function.arguments) == {"city": "Oslo"}
        content = RESULTS[call.function.name]
        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    last = create(model="default", messages=messages, tools=given).choices[0].message
    same(last.content, words)


def structured(url: str) -> None:
    parse = client(url).chat.completions.parse
    parsed = parse(model="default", messages=[user(CITY)], response_format=City)
    assert isinstance(parsed.choices[0].message.parsed, City)


def thinking(url: str) -> None:
    answer = client(url).chat.completions.create(model="default", messages=[user(THINK)])
    message = answer.choices[0].message
    same(message.content, THINK)
    assert message.to_dict()["reasoning_content"].strip() == "Hm."


def errors(url: str) -> None:
    create = client(url).chat.completions.create
    refuses(lambda: create(model="default", messages=[], temperature=0), BadRequestError)


def cancel(url: str) -> None:
    with client(url).chat.completions.create(
        model="default", messages=[user(HELLO)], stream=True
    ) as events:
        next(iter(events))
    chat(url)


def r_chat(url: str) -> None:
    same(client(url).responses.create(model="default", input=HELLO).output_text, HELLO)


def r_stream(url: str) -> None:
    with client(url).responses.stream(model="default", input=HELLO) as events:
        same(events.get_final_response().output_text, HELLO)


def r_tools(url: str, words: str = WEATHER, num_calls: int = 1) -> None:
    given = [{"type": "function", "strict": False, **each} for each in FUNCTIONS]
    create = client(url).responses.create
    first = create(model="default", input=words, tools=given)
    calls = [item for item in first.output if item.type == "function_call"]
    assert len(calls) == num_calls, first.output
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": RESULTS[call.name]}
        for call in calls
    ]
    more = {"previous_response_id": first.id, "tools": given}
    same(create(model="default", input=results, **more).output_text, words)


def r_structured(url: str) -> None:
    parsed = client(url).responses.parse(model="default", input=CITY, text_format=City)
    assert isinstance(parsed.output_parsed, City)


def r_thinking(url: str) -> None:
    answer = client(url).responses.create(model="default", input=THINK)
    same(answer.output_text, THINK)
    assert answer.output[0].type == "reasoning"


def r_errors(url: str) -> None:
    refuses(lambda: client(url).responses.create(model="default", input=[]), BadRequestError)


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
            "cancel": cancel,
            "responses chat": r_chat,
            "responses stream": r_stream,
            "responses tools": r_tools,
            "responses parallel": lambda url: r_tools(url, BOTH, 2),
            "responses structured": r_structured,
            "responses thinking": r_thinking,
            "responses errors": r_errors,
        }
    )
