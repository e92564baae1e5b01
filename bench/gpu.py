"""Scenarios of `keepwarm bench` on a GPU, in the shapes of large models, within a few minutes.

    python -m bench.gpu --out DIR                               three models, a little of each
    python -m bench.gpu --out DIR --models qwen3_5-9b           more of one
    python -m bench.gpu --out DIR --models qwen3_5-9b --brief --scenarios memory,agent
    python -m bench.gpu --out DIR --models qwen3-0.6b --long    a prompt of 100,000 tokens

The servers of a model start once and play all its scenarios. Each model has its share of the time:
what does not fit is skipped, and said so. Every report is written to DIR as soon as it is there; the
tables come last, also when the run is stopped.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console

from keepwarm.bench import duel
from keepwarm.bench.report import Report
from keepwarm.bench.scenarios import SCENARIOS
from keepwarm.bench.talk import OURS, THEIRS, Plan
from keepwarm.errors import KeepwarmError

WIDTH = 110  # of the tables


@dataclass(frozen=True, slots=True)
class Part:
    """One scenario, as large as there is time for."""

    scenario: str
    cost_s: float  # a guess, all systems together; it may take half as long again
    options: Mapping[str, list[int]] = field(default_factory=dict)
    sizes: Mapping[str, Any] = field(default_factory=dict)  # constants of its module
    num_rounds: int = 1
    is_kept: bool = True  # else it is played so that kernels are made, and not told

    @property
    def module(self) -> Any:
        return SCENARIOS[self.scenario].module(self.scenario)


# mlx-lm reads some 330 tokens a second in the shape of Qwen3.5-9B: off Metal its DeltaNet is a loop
# over the tokens. A decode step takes 7 to 12 ms, with anyone. MLX makes a kernel when it is first
# needed, which takes up to a second, and keeps it on the disk for all: whoever comes first would pay
# for both. So before what is told both rehearse, with prompts of other lengths.
_REHEARSAL = (
    Part("prefix", 30, {"lengths": [1500]}, {"NUM_HOT": 1}, is_kept=False),
    Part("burst", 45, {"requests": [6]}, {"OWN_LEN": 270}, is_kept=False),
)
_DELTA = (
    _REHEARSAL[0],  # mlx-lm alone would take half a minute for the other
    Part("prefix", 45, {"lengths": [2000]}),
    Part("chat", 40, sizes={"NUM_TURNS": 8}),
    Part("burst", 45, {"requests": [6]}),
    Part("memory", 60, sizes={"NUM_TURNS": 6, "NUM_CHATS": 3, "NUM_TURNS_EACH": 3}),
    Part("agent", 125, sizes={"NUM_USERS": 2}),
)
_LIGHT = (
    *_REHEARSAL,
    Part("prefix", 110, {"lengths": [2000, 20000]}, num_rounds=3),
    Part("chat", 75),
    Part("agent", 30, sizes={"NUM_USERS": 3}),
    Part("burst", 30, {"requests": [6, 32]}),
    Part("memory", 32, sizes={"NUM_TURNS": 10, "NUM_TURNS_EACH": 2}),
)
_LARGE = (
    *_REHEARSAL,
    Part("agent", 34, sizes={"NUM_USERS": 2}),
    Part("chat", 24, sizes={"NUM_TURNS": 8}),
    Part("prefix", 20, {"lengths": [2000]}),
    Part("memory", 42, sizes={"NUM_TURNS": 6, "NUM_CHATS": 3, "NUM_TURNS_EACH": 3}),
    Part("burst", 14, {"requests": [6]}),
)
# A little of each, so that three models take less than 8 minutes, of which loading them is half: what
# comes first and counts no time (`memory`) is a rehearsal too, and what takes mlx-lm half a minute is
# asked once.
_CHATS = {"NUM_TURNS": 3, "NUM_CHATS": 2, "NUM_TURNS_EACH": 1}
_BRIEF_DELTA = (
    Part("memory", 16, sizes=_CHATS),
    Part("chat", 14, sizes={"NUM_TURNS": 5}),
    Part("agent", 28, sizes={"NUM_USERS": 1, "KINDS": ("tools only",)}),
    Part("burst", 22, {"requests": [6]}, {"SYSTEM_LEN": 1000}),
    Part("prefix", 34, {"lengths": [1000]}, {"NUM_HOT": 2}),
)
_BRIEF_LARGE = (
    Part("memory", 22, sizes=_CHATS),
    Part("chat", 18, sizes={"NUM_TURNS": 5}),
    Part("agent", 17, sizes={"NUM_USERS": 1, "KINDS": ("system", "tools only")}),
    Part("burst", 10, {"requests": [6]}, {"OWN_LEN": 270}, is_kept=False),
    Part("burst", 9, {"requests": [6]}),
    Part("prefix", 20, {"lengths": [2000]}),
)
_BRIEF_LIGHT = (
    Part("memory", 9, sizes=_CHATS),
    Part("chat", 9, sizes={"NUM_TURNS": 5}),
    Part("agent", 13, sizes={"NUM_USERS": 1}),
    Part("burst", 4, {"requests": [6]}, {"OWN_LEN": 270}, is_kept=False),
    Part("burst", 3, {"requests": [6]}),
    Part("prefix", 13, {"lengths": [2000]}),
)
# Where two prompts of so many tokens part early, mlx-lm's search alone takes 10 s and more.
_LONG = (Part("prefix", 150, {"lengths": [100_000]}, {"NUM_HOT": 1}),)
# Of any other shape: to try this script on a CPU.
_TRIAL = (
    Part("chat", 20, sizes={"NUM_TURNS": 3}),
    Part("agent", 20, sizes={"NUM_USERS": 1, "DOCUMENT_LEN": 300, "NUM_TOOLS": 1}),
    Part("prefix", 20, {"lengths": [200]}),
    Part("burst", 20, {"requests": [2]}, {"SYSTEM_LEN": 300}),
    Part("memory", 20, sizes={"NUM_TURNS": 2, "NUM_CHATS": 2, "NUM_TURNS_EACH": 1}),
)
PARTS = {
    "qwen3_5-9b": _DELTA,
    "nemotron_h-30b-a3b": _LARGE,
    "qwen3-0.6b": _LIGHT,
    "qwen3_5-35b-a3b": _LARGE,
}
BRIEF = {
    "qwen3_5-9b": _BRIEF_DELTA,
    "nemotron_h-30b-a3b": _BRIEF_LARGE,
    "qwen3-0.6b": _BRIEF_LIGHT,
    "qwen3_5-35b-a3b": _BRIEF_LARGE,
}
ONE_AT_A_TIME = {"nemotron_h-30b-a3b", "qwen3_5-35b-a3b"}  # two of them do not fit
# To start the servers of a model and to warm up, at most: kernels are made. And when others have been
# there before.
LOAD_S = 110.0
LOAD_AGAIN_S = {"nemotron_h-30b-a3b": 76.0, "qwen3_5-35b-a3b": 76.0}  # one after the other
_LOAD_AGAIN_S = 28.0
LOAD_LATER_S = 25.0  # of the second of two that do not fit together
# mlx-lm takes half a minute for the first 600 tokens of Qwen3.5-9B, and rehearsals come anyway.
WARM_UP_LEN = 100


class TimeIsUp(Exception):
    """A part has had its time."""


class Stopped(Exception):
    """The run was told to end."""


def main() -> None:
    args = _parser().parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGALRM, _raise(TimeIsUp))
    signal.signal(signal.SIGTERM, _raise(Stopped))
    duel.WARM_UP_LEN = WARM_UP_LEN
    run = Run(args.out, 60 * args.minutes)
    models = args.models.split(",")
    table = BRIEF if args.brief or len(models) > 1 else PARTS
    parts: list[Sequence[Part]]
    parts = [_LONG if args.long else table.get(model, _TRIAL) for model in models]
    if args.scenarios is not None:
        names = args.scenarios.split(",")
        parts = [[p for p in mine if p.scenario in names or not p.is_kept] for mine in parts]
    try:
        for i, model in enumerate(models):
            run.play(model, parts[i], sum(map(_share_s, models[i + 1 :], parts[i + 1 :])))
    except (Stopped, KeyboardInterrupt):
        run.leave_out("the rest: the run was stopped")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run.show()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Scenarios of `keepwarm bench` on a GPU.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for the reports")
    parser.add_argument("--minutes", type=float, default=8, metavar="N", help="in all (default: 8)")
    parser.add_argument(
        "--models", default="qwen3_5-9b,nemotron_h-30b-a3b,qwen3-0.6b", metavar="M,M",
        help="shapes; of one alone, more is played (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--scenarios", metavar="S,S", help="only these")
    parser.add_argument("--brief", action="store_true", help="a little of each, of one model too")
    parser.add_argument(
        "--long", action="store_true", help="one prompt of 100,000 tokens, and nothing else"
    )
    return parser


def _share_s(model: str, parts: Sequence[Part]) -> float:
    """What a model that comes later needs."""
    return LOAD_AGAIN_S.get(model, _LOAD_AGAIN_S) + sum(part.cost_s for part in parts)


def _raise(fault: type[Exception]) -> Callable[..., None]:
    def handler(*_: object) -> None:
        raise fault

    return handler


class Run:
    """All parts of some models, one after the other, until the time is up."""

    def __init__(self, out: Path, total_s: float) -> None:
        self._out = out
        self._began = monotonic()
        self._total_s = total_s
        self._reserved_s = 0.0
        self._reports: dict[str, tuple[Report, Part]] = {}
        self._left_out: list[str] = []

    def play(self, model: str, parts: Sequence[Part], reserved_s: float = 0) -> None:
        """All parts for which there is time, less what is reserved for others. Raises Stopped."""
        pairs = [(part, self._duel(model, part)) for part in parts]
        both = [OURS.name, THEIRS.name]
        turns = [[name] for name in both] if model in ONE_AT_A_TIME else [both]
        dtype = "bfloat16" if model in PARTS else None  # as they are built; a CPU would widen them
        with duel.Servers(model, dtype) as servers:
            for i, names in enumerate(turns):
                # What those need whose turn comes later.
                later_s = LOAD_LATER_S + sum(part.cost_s for part in parts) / len(both)
                self._reserved_s = reserved_s + later_s * (len(turns) - i - 1)
                # What one system had no time for, the other need not do.
                pairs = [pair for pair in pairs if self._play(model, *pair, servers, names)]
                servers.close()

    def leave_out(self, words: str) -> None:
        """Said now, and again below the tables."""
        self._left_out.append(words)
        print(f"{self._spent_s:4.0f} s: left out: {words}", file=sys.stderr, flush=True)

    def show(self) -> None:
        """The tables, on the screen and in a file beside the reports."""
        spent_s = self._spent_s
        with (self._out / "tables.txt").open("w", encoding="utf-8") as file:
            for console in (Console(width=WIDTH, file=file), Console(width=WIDTH)):
                for report, part in self._reports.values():
                    console.print(duel.table(report, part.module))
                for words in self._left_out:
                    console.print(f"Left out: {words}")
                console.print(f"All in {spent_s:.0f} s.")

    @property
    def _spent_s(self) -> float:
        return monotonic() - self._began

    @property
    def _left_s(self) -> float:
        return self._total_s - self._reserved_s - self._spent_s

    def _duel(self, model: str, part: Part) -> duel.Duel:
        def on_progress(words: str) -> None:
            print(f"{self._spent_s:4.0f} s: {model}, {part.scenario}: {words}", flush=True)

        plan = Plan(model, part.num_rounds, options=part.options)
        return duel.Duel(part.scenario, part.module, plan, on_progress)

    def _play(
        self, model: str, part: Part, found: duel.Duel, servers: duel.Servers, names: list[str]
    ) -> bool:
        """Whether it came to its end. Raises Stopped."""
        cost_s = part.cost_s * len(names) / 2
        where = f"{'' if part.is_kept else 'rehearsal of '}{part.scenario} with {model}"
        if self._left_s < cost_s:
            self.leave_out(f"{where}: takes some {cost_s:.0f} s, {self._left_s:.0f} are left")
            return False
        # One with settings of its own would need one more server.
        systems = [system for system in found.systems if system.name in names and not system.job]
        try:
            with _limit(min(1.5 * cost_s + LOAD_S, self._left_s)), _sizes(part):
                found.play(systems, servers)
        except (TimeIsUp, KeepwarmError, AssertionError) as fault:
            words = "took too long" if isinstance(fault, TimeIsUp) else f"{fault}"
            self.leave_out(f"{where}, from some case on: {words}")
            servers.close()  # who knows what they still do
            return False
        finally:
            if part.is_kept:
                self._keep(f"{part.scenario}-{model}", found, part)
        return True

    def _keep(self, name: str, found: duel.Duel, part: Part) -> None:
        """Writes what there is."""
        if not found.has_rows:
            return
        report = found.report()
        report.command = shlex.join(["python", "-m", "bench.gpu", *_without_out(sys.argv[1:])])
        report.write(self._out / f"{name}.json")
        self._reports[name] = (report, part)


def _without_out(words: list[str]) -> list[str]:
    words = [word for word in words if not word.startswith("--out=")]
    if "--out" in words:
        at = words.index("--out")
        del words[at : at + 2]
    return words


@contextmanager
def _limit(limit_s: float) -> Iterator[None]:
    """Raises TimeIsUp in what runs within, when it has run so long."""
    signal.setitimer(signal.ITIMER_REAL, max(0.01, limit_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _sizes(part: Part) -> Iterator[None]:
    """The constants of its module, as they shall be for this part. Mutates the module."""
    plain = {name: getattr(part.module, name) for name in part.sizes}
    try:
        for name, size in part.sizes.items():
            setattr(part.module, name, size)
        yield
    finally:
        for name, size in plain.items():
            setattr(part.module, name, size)


if __name__ == "__main__":
    main()
