"""The scenarios that ask servers, by name. Light: their modules are imported when they run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from keepwarm.errors import BadInput


@dataclass(frozen=True, slots=True)
class Option:
    """A flag of one scenario: `--name`, whose numbers reach it as `plan.options[name]`."""

    name: str
    default: str  # numbers with commas between them
    help: str

    def read(self, text: str) -> list[int]:
        """Raises BadInput."""
        try:
            found = [int(part) for part in text.split(",")]
        except ValueError as error:
            raise BadInput(
                f"--{self.name}: {text!r} is no list of numbers; write {self.default}"
            ) from error
        if min(found) < 1:
            raise BadInput(f"--{self.name} must be at least 1")
        return found


@dataclass(frozen=True, slots=True)
class Entry:
    """One scenario, as the command line knows it."""

    help: str
    description: str
    num_rounds: int = 3
    options: tuple[Option, ...] = ()

    def module(self, name: str) -> Any:
        return import_module(f"keepwarm.bench.{name}")


SCENARIOS: dict[str, Entry] = {
    "chat": Entry(
        "a long chat with a thinking model",
        "40 turns of a chat, 64 tokens a reply, thoughts stripped from the history: with idle"
        " prefill, without it, and mlx-lm's server.",
        num_rounds=1,
    ),
}
