"""pydantic-ai: its models for responses (`openai:`) and chats."""

from __future__ import annotations

from common import BOTH, CITY, HELLO, WEATHER, refuses, run, same
from openai_sdk import City
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def agent(url: str, kind: type = OpenAIResponsesModel, **options: object) -> Agent:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    made = Agent(kind("default", provider=provider), **options)

    @made.tool_plain
    def get_weather(city: str) -> str:
        """The weather."""
        return "Snow."

    @made.tool_plain
    def get_time(city: str) -> str:
        """The time."""
        return "Noon."

    return made


def ask(url: str, words: str, kind: type = OpenAIResponsesModel) -> None:
    same(agent(url, kind).run_sync(words).output, words)


def stream(url: str) -> None:
    import asyncio

    async def said() -> str:
        async with agent(url).run_stream(HELLO) as running:
            return str(await running.get_output())

    same(asyncio.run(said()), HELLO)


def structured(url: str, kind: type = OpenAIResponsesModel) -> None:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    made = Agent(kind("default", provider=provider), output_type=City)
    assert isinstance(made.run_sync(CITY).output, City)


def errors(url: str) -> None:
    bad = {"temperature": 9.0}
    refuses(lambda: agent(url).run_sync(HELLO, model_settings=bad), ModelHTTPError)


if __name__ == "__main__":
    run(
        {
            "responses chat": lambda url: ask(url, HELLO),
            "responses stream": stream,
            "responses tools": lambda url: ask(url, WEATHER),
            "responses parallel": lambda url: ask(url, BOTH),
            "responses structured": structured,
            "errors": errors,
            "chat": lambda url: ask(url, HELLO, OpenAIChatModel),
            "tools": lambda url: ask(url, WEATHER, OpenAIChatModel),
            "structured": lambda url: structured(url, OpenAIChatModel),
        }
    )
