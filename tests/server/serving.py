"""The server on a socket of this machine, with a small real model, its engine and a tokenizer
that writes thoughts and tool calls."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import httpx
import mlx.core as mx
import uvicorn
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools
from openai import OpenAI

from keepwarm import Placement, PrefixCache
from keepwarm.config import Config
from keepwarm.engine.engine import Engine
from keepwarm.server.app import create_app
from keepwarm.server.connections import Connection
from tests.architectures.zoo import ARCHITECTURES
from tests.prompt.tokenizers_for_tests import make_tokenizer

# Tools as JSON, thoughts where they are asked for.
TEMPLATE = """
{%- if tools -%}<|im_start|>tools
{{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.reasoning_content is defined -%}
<think>
{{ message.reasoning_content }}
</think>

{% endif -%}
{{ message.content or '' }}
{%- for tool_call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ tool_call.function.name }}", "arguments": {{ tool_call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% if thinks is defined %}<think>
{% endif %}{% endif -%}
"""
MARKUP = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_start|>", "<|im_end|>")

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
# A checkpoint at every message, so that short conversations show what long ones do.
PLACEMENT = Placement(min_span=16, prefill_step=64)


@cache
def tokenizer(template: str = TEMPLATE) -> TokenizerWrapper:
    return TokenizerWrapper(
        make_tokenizer(template, extra_tokens=MARKUP),
        tool_parser=json_tools.parse_tool_call,
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
    )


def load(architecture: str, template: str = TEMPLATE) -> tuple[Any, Any]:
    made = ARCHITECTURES[architecture]
    config = {**made.config, "vocab_size": len(tokenizer(template))}
    return replace(made, config=config).build(mx.float32), tokenizer(template)


@dataclass(frozen=True)
class Served:
    """A running server."""

    url: str
    engine: Engine
    http: httpx.Client

    def client(self, api_key: str = "none", **options: Any) -> OpenAI:
        """OpenAI's own client; it never asks twice."""
        options = {"max_retries": 0, "timeout": 60, **options}
        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, **options)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def chat(self, text: str = "Hi", **options: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 4, **options}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: Any = "Hi", **options: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, **options})

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Until something the engine tells is so; it refreshes what it tells when it rests."""
        for _ in range(600):
            if is_so():
                return
            time.sleep(0.02)
        raise AssertionError("it never became so")


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error in OpenAI's form, and nothing else."""
    body = response.json()
    assert set(body) == {"error"}, body
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    return error


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream that ended well."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@contextmanager
def served(
    architecture: str = "llama",
    *,
    start: Callable[[Engine], None] | None = None,
    template: str = TEMPLATE,
    **config: Any,
) -> Iterator[Served]:
    """A server with these settings. `start` starts its engine, by default until it is ready."""
    settings = Config(**{"model": "models/small", "keep_alive_s": 0.2, **config})

    def make_cache(model: Any) -> PrefixCache:
        budget = settings.cache_bytes
        assert isinstance(budget, int | None)
        return PrefixCache(
            model, budget_bytes=budget or 10**9, exact=settings.exact, placement=PLACEMENT
        )

    engine = Engine(
        lambda: load(architecture, template),
        make_cache=make_cache,
        settings=settings.engine_settings(),
    )
    with listening(engine, settings) as url, httpx.Client(base_url=url, timeout=60) as http:
        (start or _start)(engine)
        try:
            yield Served(url, engine, http)
        finally:
            engine.stop()


def _start(engine: Engine) -> None:
    engine.start()
    assert engine.wait_ready(60)


@contextmanager
def listening(
    engine: Engine, settings: Config, wrap: Callable[[Any], Any] = lambda app: app
) -> Iterator[str]:
    """The address of a server whose engine may not run yet."""
    app = wrap(create_app(engine, settings))
    options: dict[str, Any] = {
        "http": Connection,
        "log_config": None,
        "timeout_graceful_shutdown": 1,
        "lifespan": "off",
    }
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, **options))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
