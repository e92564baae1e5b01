"""instructor, in its default mode (a tool) and by a JSON schema."""

from __future__ import annotations

import instructor
from common import CITY, run
from openai import OpenAI
from openai_sdk import City


def structured(url: str, mode: instructor.Mode = instructor.Mode.TOOLS) -> None:
    client = instructor.from_openai(
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=mode
    )
    messages = [{"role": "user", "content": CITY}]
    made = client.chat.completions.create(
        model="default", messages=messages, response_model=City, max_retries=0
    )
    assert isinstance(made, City)


if __name__ == "__main__":
    run(
        {
            "structured": structured,
            "structured by schema": lambda url: structured(url, instructor.Mode.JSON_SCHEMA),
        }
    )
