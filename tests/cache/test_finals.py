"""What was said at the end of a prompt is given for that prompt only."""

from __future__ import annotations

import mlx.core as mx

from keepwarm.cache.finals import MAX_FINALS, Finals
from keepwarm.prompt.boundaries import Prompt


def prompt(first: int, length: int = 40) -> Prompt:
    """They differ in their first token."""
    return Prompt([first, *range(1, length)])


def test_another_beginning_or_namespace_or_length_is_another_prompt() -> None:
    finals, logits = Finals(), mx.zeros((1, 8))
    finals.put("a", prompt(7), logits)
    assert finals.get("a", prompt(7)) is logits
    assert finals.get("a", prompt(8)) is None
    assert finals.get("b", prompt(7)) is None
    assert finals.get("a", prompt(7, 41)) is None


def test_those_asked_last_stay() -> None:
    finals = Finals()
    for length in range(10, 10 + MAX_FINALS):
        finals.put("", prompt(0, length), mx.zeros((1, 8)))
    assert finals.get("", prompt(0, 10)) is not None
    finals.put("", prompt(0, 99), mx.zeros((1, 8)))
    known = [n for n in (10, 11, 12, 99) if finals.get("", prompt(0, n)) is not None]
    assert known == [10, 12, 99]
    finals.clear()
    assert finals.get("", prompt(0, 99)) is None
