"""A model that calls a tool: the call is parsed, answered, and the conversation goes on.

    python examples/tools.py

Each round reads only the call's result: the tools and all before it are cached.
"""

from __future__ import annotations

import json

from keepwarm import Session, load

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def get_weather(city: str) -> str:
    return f"It is raining in {city}."


def main() -> None:
    session = Session(*load(), tools=[WEATHER])
    result = session.chat("What is the weather in Lund?").result
    while result.reply.tool_calls:
        answers = []
        for call in result.reply.tool_calls:
            said = get_weather(**json.loads(call.arguments))
            print(f"{call.name}({call.arguments}) -> {said}")
            answers.append({"role": "tool", "tool_call_id": call.id, "content": said})
        result = session.chat(answers).result
    print(result.reply.content)
    print(f"{result.cached_tokens} of {result.prompt_tokens} tokens cached ({result.reason})")


if __name__ == "__main__":
    main()
