"""What is shown of a turn."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from keepwarm.cache.explain import Reason
from keepwarm.cli.chat.screen import Screen, cost_line, without_controls
from keepwarm.events import Reading, Result, Timings
from keepwarm.prompt.reply import Said, Thought


def result(num_tokens: int = 47, finish_reason: str = "stop", **timings: float) -> Result:
    return Result(
        text="",
        tokens=[5] * num_tokens,
        finish_reason=finish_reason,
        prompt_tokens=1431,
        cached_tokens=1412,
        reason=Reason.EXTENDED,
        timings=Timings(**timings),
    )


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (
            result(first_token_s=0.038, decode_s=0.5),
            "cached 1,412 of 1,431 tokens · read 19 · first token 38 ms · 92 tok/s",
        ),
        (
            result(1, "length", first_token_s=2.34, decode_s=0.1),
            "cached 1,412 of 1,431 tokens · read 19 · first token 2.3 s · cut at 1 tokens",
        ),
        (
            result(0, "cancelled"),
            "cached 1,412 of 1,431 tokens · read 19 · stopped (Ctrl-C again leaves)",
        ),
    ],
)
def test_cost_of_a_turn_is_one_line(shown: Result, expected: str) -> None:
    assert cost_line(shown) == expected


class Played:
    """A turn whose events are known."""

    def __init__(self, *events: Any) -> None:
        self.result = result()
        self._events = events

    def events(self) -> Any:
        return iter(self._events)


def shown(*events: Any) -> str:
    out = io.StringIO()
    Screen(Console(file=out, force_terminal=True, color_system="standard")).show(
        Played(*events)  # type: ignore[arg-type]
    )
    return out.getvalue()


def test_thought_is_dimmed_and_stands_apart_from_the_answer() -> None:
    text = shown(Reading(position=3, prompt_tokens=9), Thought("hm, "), Thought("so"), Said("Yes."))
    assert "\x1b[2mhm, \x1b[0m\x1b[2mso\x1b[0m\n\nYes.\n" in text
    assert "reading 3 of 9 tokens" in text


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    assert "[bold]x[/bold] :smile: 1.0" in shown(Said("[bold]x[/bold] :smile: 1.0"))


def test_reply_cannot_steer_the_terminal() -> None:
    assert without_controls("a\x1b]0;title\x07b\r\n\tc\x9b2J") == "a]0;titleb\n\tc2J"
    assert "\x1b]0;" not in shown(Said("\x1b]0;title\x07"))
