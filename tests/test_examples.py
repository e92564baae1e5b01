"""Each example runs, as it stands, and says what it is there to show."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import keepwarm
from keepwarm.model.loader import load

EXAMPLES = Path(__file__).parent.parent / "examples"
# The other one is mlx-lm's server, which tests/compat starts.
SAYS = {
    "demo": ["Room 941", "tokens cached (branched)"],
    "own_loop": ["Anna lives in Lund.", "211 of 215 tokens cached"],
    "many": ["Anna: In Lund.", "prompt tokens cached"],
    "choices": ["Anna: Lund", "Carla: Ghent"],
    "structured": ["{'town': 'Porto'}"],
    "branches": ["forked: In Porto. | 33 of 55 tokens cached (extended)"],
    "tools": ['get_weather({"city": "Lund"})', "103 of 127 tokens cached"],
}


def test_all_examples_are_tried() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == {*SAYS, "mlx_lm_server"}


@cache
def loaded() -> Any:
    return load()


@pytest.mark.parametrize("name", SAYS)
def test_example_says_what_it_is_there_to_show(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in ("many", "choices"):  # an engine's model belongs to its thread
        monkeypatch.setattr(keepwarm, "load", loaded, raising=False)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    told = capsys.readouterr().out
    for words in SAYS[name]:
        assert words in told
