"""What a conversation looks like: the thought dimmed, and a line on what each turn cost."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.status import Status as Spinner

from keepwarm.cli.chat.conversation import Totals, Turn
from keepwarm.cli.chat.words import COMMANDS
from keepwarm.engine.status import Status
from keepwarm.events import Reading, Result
from keepwarm.prompt.reply import Called, Piece, Said, Thought

_DIM = "dim"


class Screen:
    """A terminal. Main thread."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def greet(self, name: str, status: Status) -> None:
        kept = status.layers or "unknown"
        if status.disabled_because is not None:
            kept += f", not cached: {status.disabled_because}"
        self._out(f"{name} · {kept} · /help for commands, Ctrl-D to leave\n\n", _DIM)

    def show(self, turn: Turn) -> None:
        """The reply as it comes, then what it took. Raises what failed."""
        part: type[Piece] | None = None
        with self._waiting() as spinner:
            for event in turn.events():
                if isinstance(event, Reading):
                    spinner.update(f"reading {event.position:,} of {event.prompt_tokens:,} tokens")
                    continue
                spinner.stop()
                if part is not None and part is not type(event):
                    self._out("\n\n")
                part = type(event)
                self._show_piece(event)
        if part is not None:
            self._out("\n")
        assert turn.result is not None
        self._out(cost_line(turn.result) + "\n\n", _DIM)

    def note(self, text: str) -> None:
        self._out(text + "\n", _DIM)

    def complain(self, text: str) -> None:
        self._out(text + "\n", "red")

    def help(self) -> None:
        for name, takes, words in COMMANDS:
            self.note(f"  {f'/{name} {takes}'.rstrip():<16}{words}")
        self.note('  """             begin and end a message of several lines; pasting works too')
        self.note("  Ctrl-C          stop the answer")

    def stats(self, totals: Totals, status: Status) -> None:
        for line in stats_lines(totals, status):
            self.note(line)

    def _show_piece(self, piece: Piece) -> None:
        match piece:
            case Said(text):
                self._out(text)
            case Thought(text):
                self._out(text, _DIM)
            case Called(_, call):
                self._out(f"{call.name}({call.arguments})", "cyan")

    def _out(self, text: str, style: str | None = None) -> None:
        self._console.out(without_controls(text), end="", style=style, highlight=False)

    @contextmanager
    def _waiting(self) -> Iterator[Spinner]:
        with self._console.status("", spinner="dots") as spinner:
            yield spinner


def without_controls(text: str) -> str:
    """A reply must not move the cursor or rename the window."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")


def cost_line(result: Result) -> str:
    """`cached 412 of 431 tokens · read 19 · first token 38 ms · 92 tok/s`."""
    timings, num_tokens = result.timings, len(result.tokens)
    parts = [
        f"cached {result.cached_tokens:,} of {result.prompt_tokens:,} tokens",
        f"read {result.prefilled_tokens:,}",
    ]
    if num_tokens:
        parts.append(f"first token {_span(timings.first_token_s)}")
    if num_tokens > 1 and timings.decode_s > 0:
        parts.append(f"{(num_tokens - 1) / timings.decode_s:.0f} tok/s")
    if result.finish_reason == "length":
        parts.append(f"cut at {num_tokens:,} tokens")
    if result.finish_reason == "cancelled":
        parts.append("stopped (Ctrl-C again leaves)")
    return " · ".join(parts)


def stats_lines(totals: Totals, status: Status) -> list[str]:
    share = totals.cached_tokens / totals.prompt_tokens if totals.prompt_tokens else 0.0
    lines = [
        f"  turns       {totals.num_turns:,}, {totals.reply_tokens:,} tokens of replies",
        f"  prompts     {totals.prompt_tokens:,} tokens, {share:.1%} from the cache",
        f"  read ahead  {status.counters.idle_tokens:,} tokens while you typed,"
        f" {status.counters.idle_saved_tokens:,} of them used",
    ]
    if status.cache is not None:
        held, budget = status.cache.held_bytes / 1e6, status.cache.budget_bytes / 1e6
        lines.append(
            f"  cache       {held:,.1f} of {budget:,.0f} MB,"
            f" {status.cache.num_checkpoints:,} checkpoints"
        )
    return lines


def _span(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
