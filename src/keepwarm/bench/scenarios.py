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
                f"--{self.name}: {text!r} is not a list of numbers; write it like {self.default}"
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
    model: str = "qwen3_5-mini"  # unless another is named
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
    "agent": Entry(
        "prompts that begin alike",
        "5 users of one application: tools and system, tools only, a document in the user message,"
        " and a text to be completed, each of 2,700 tokens that all of them share.",
        num_rounds=2,
    ),
    "burst": Entry(
        "many requests at once with one system prompt",
        "Requests that come at once, each with a system prompt of 2,700 tokens and about 300 tokens of"
        " its own: with an empty cache, and again.",
        options=(Option("requests", "6,32", "how many come at once"),),
    ),
    "memory": Entry(
        "what is held after long chats",
        "Bytes held after 40 turns of a chat, and after 10 turns of each of 6 chats in turn. The"
        " shape qwen3_5-dear has snapshots as dear as those of Qwen3.5-35B-A3B; the last columns say"
        " what as many snapshots and rows of that model would weigh.",
        num_rounds=1,
        model="qwen3_5-dear",
    ),
    "mixed": Entry(
        "streams beside a long prompt, and many together",
        "Gaps between the tokens of 4 running streams while a long prompt is read, and the tokens"
        " per second of 1, 8 and 32 streams that decode together, as a client sees them.",
        options=(
            Option("prompt", "8000", "tokens of the long prompt"),
            Option("streams", "1,8,32", "how many streams decode together"),
        ),
    ),
    "prefix": Entry(
        "a prompt that was read before",
        "Time to the first token of a new prompt, of the same again (exact) and with its last 23"
        " tokens changed (nearest), as one message; and of as many tokens in 80 messages.",
        options=(Option("lengths", "2000,8000", "tokens of a prompt"),),
    ),
    "tools": Entry(
        "a tool loop of a thinking model",
        "10 tool calls and their results: thoughts sent back, left out, and left out by a template"
        " that writes no empty block for them; and the first question after each loop.",
        num_rounds=1,
    ),
    "branch": Entry(
        "conversations that go another way",
        "10 turns, then the fifth question is edited, the fifth answer and the last are generated"
        " anew: how far what was cached lies from the most that any cache could have had.",
        num_rounds=1,
    ),
    "reread": Entry(
        "random conversations: what is read again for nothing",
        "Random conversations begin, go on, call tools, have a message edited and are asked again, with"
        " replies of the server's own and with others. Counts the tokens behind the longest beginning"
        " that a prompt shares with what was read or said before: no cache could have spared the rest."
        " No idle prefill; mlx-lm's server also with room for 200 entries.",
        num_rounds=1,
        model="qwen3_5-small",
        options=(
            Option("seeds", "1,2", "one set of conversations each"),
            Option("requests", "60", "of each set"),
        ),
    ),
}
