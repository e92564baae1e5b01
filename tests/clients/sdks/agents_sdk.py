"""openai-agents, which speaks responses by default."""

from __future__ import annotations

import openai
from agents import Agent, Runner, function_tool, set_default_openai_client, set_tracing_disabled
from common import BOTH, CITY, HELLO, WEATHER, refuses, run, same
from openai_sdk import City


@function_tool
def get_weather(city: str) -> str:
    """The weather."""
    return "Snow."


@function_tool
def get_time(city: str) -> str:
    """The time."""
    return "Noon."


def agent(url: str, **options: object) -> Agent:
    set_tracing_disabled(disabled=True)
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    set_default_openai_client(client, use_for_tracing=False)
    return Agent(name="a", model="default", **options)


def ask(url: str, words: str) -> None:
    made = agent(url, tools=[get_weather, get_time])
    same(Runner.run_sync(made, words).final_output, words)


def stream(url: str) -> None:
    import asyncio

    async def said() -> object:
        running = Runner.run_streamed(agent(url), HELLO)
        async for _ in running.stream_events():
            pass
        return running.final_output

    same(asyncio.run(said()), HELLO)


def structured(url: str) -> None:
    assert isinstance(Runner.run_sync(agent(url, output_type=City), CITY).final_output, City)


def errors(url: str) -> None:
    from agents import ModelSettings

    made = agent(url, model_settings=ModelSettings(temperature=9))
    refuses(lambda: Runner.run_sync(made, HELLO), openai.BadRequestError)


if __name__ == "__main__":
    run(
        {
            "responses chat": lambda url: ask(url, HELLO),
            "responses stream": stream,
            "responses tools": lambda url: ask(url, WEATHER),
            "responses parallel": lambda url: ask(url, BOTH),
            "responses structured": structured,
            "errors": errors,
        }
    )
