"""What the programs of this folder share: each asks for the same things with one SDK, in its default
modes, and prints what went well as JSON. They run in an environment of their own."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

# Words that the server's script knows.
HELLO, WEATHER, BOTH, THINK, CITY = (
    "Say hello, please.", "How is the weather?", "Weather and time, please.", "Think first.",
    "Which city is it?",
)  # fmt: skip
SAID = {
    HELLO: "Hello there.", WEATHER: "It snows in Oslo.", BOTH: "Snow at noon.", THINK: "Thought.",
}  # fmt: skip

Check = Callable[[str], Any]


def run(checks: dict[str, Check]) -> None:
    """Each check is given the server's address. Prints one line."""
    url, told = sys.argv[1], {}
    for name, check in checks.items():
        try:
            check(url)
            told[name] = "ok"
        except Exception:
            told[name] = "".join(traceback.format_exc().splitlines(keepends=True)[-12:])
    print(json.dumps(told))


def same(said: object, words: str) -> None:
    assert isinstance(said, str)
    assert said.strip() == SAID[words], repr(said)


def refuses(ask: Callable[[], Any], kind: type[BaseException]) -> None:
    """Whether the SDK raises its own error for a bad request."""
    try:
        ask()
    except kind:
        return
    raise AssertionError("nothing was refused")
