"""LangChain: ChatOpenAI and an agent."""

from __future__ import annotations

import openai
from common import BOTH, CITY, HELLO, WEATHER, refuses, run, same
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai_sdk import City


@tool
def get_weather(city: str) -> str:
    """The weather."""
    return "Snow."


@tool
def get_time(city: str) -> str:
    """The time."""
    return "Noon."


def model(url: str, **options: object) -> ChatOpenAI:
    asked = {"base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, **options}
    return ChatOpenAI(model="default", **asked)


def chat(url: str) -> None:
    same(model(url).invoke(HELLO).content, HELLO)


def stream(url: str) -> None:
    same("".join(chunk.content for chunk in model(url).stream(HELLO)), HELLO)


def tools(url: str, words: str = WEATHER) -> None:
    agent = create_agent(model(url), tools=[get_weather, get_time])
    messages = agent.invoke({"messages": [{"role": "user", "content": words}]})["messages"]
    same(messages[-1].content, words)


def structured(url: str) -> None:
    assert isinstance(model(url).with_structured_output(City).invoke(CITY), City)
    by_call = model(url).with_structured_output(City, method="function_calling")
    assert isinstance(by_call.invoke(CITY), City)


def errors(url: str) -> None:
    refuses(lambda: model(url, temperature=9).invoke(HELLO), openai.BadRequestError)


if __name__ == "__main__":
    run(
        {
            "chat": chat,
            "stream": stream,
            "tools": tools,
            "parallel": lambda url: tools(url, BOTH),
            "structured": structured,
            "errors": errors,
        }
    )
