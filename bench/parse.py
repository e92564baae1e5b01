"""How long parsers of JSON hold the interpreter: `python -m bench.parse`.

Seconds for whole bodies as clients send them, and as attackers do; the longest gap that another
thread sees is as long, since none of them lets go of the interpreter while it parses."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from time import perf_counter
from typing import Any


def chat(num_chars: int) -> bytes:
    """A conversation in many messages."""
    rng = random.Random(0)
    text = " ".join(rng.choices(("the", "weather", "in", "Paris", "is", "sunny"), k=400))
    turn = [{"role": "user", "content": text}, {"role": "assistant", "content": text}]
    return json.dumps({"messages": turn * (num_chars // (2 * len(text)) + 1)}).encode()


BODIES: dict[str, Callable[[], bytes]] = {
    "a chat of 1 MB": lambda: chat(1_000_000),
    "a chat of 1 MB, escaped": lambda: json.dumps({"a": "é" * 170_000 + '"\n' * 1000}).encode(),
    "a text of 30 MB": lambda: json.dumps({"prompt": "word " * 6_000_000}).encode(),
    "600,000 tokens": lambda: json.dumps({"prompt": [12345] * 600_000}).encode(),
    "300,000 lists": lambda: b'{"x":[' + b"[]," * 299_999 + b"[]]}",
}


def parsers() -> dict[str, Callable[[bytes], Any]]:
    found: dict[str, Callable[[bytes], Any]] = {"json": json.loads}
    for name, module, function in (
        ("orjson", "orjson", "loads"),
        ("msgspec", "msgspec.json", "decode"),
        ("jiter (pydantic_core)", "pydantic_core", "from_json"),
    ):
        with suppress(ImportError):
            found[name] = getattr(import_module(module), function)
    return found


def main() -> None:
    rows = parsers()
    print(f"{'':26}" + "".join(f"{name:>24}" for name in rows))
    for what, make in BODIES.items():
        body = make()
        times: dict[str, list[float]] = {name: [] for name in rows}
        for _ in range(5):
            for name, parse in rows.items():
                began = perf_counter()
                value = parse(body)
                times[name].append(perf_counter() - began)
                del value
        cells = "".join(f"{1000 * sorted(t)[2]:>21.1f} ms" for t in times.values())
        print(f"{what:26}{cells}")


if __name__ == "__main__":
    main()
