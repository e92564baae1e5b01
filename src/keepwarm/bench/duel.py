"""keepwarm beside mlx-lm on one machine: both serve the same weights, and both are asked the same,
in turn. Main thread.

A scenario is a module with `play(talk, number)`, which asks one server all it has to ask in one
round, case by case. Everything that is asked is written down here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.table import Table

from keepwarm.bench import words
from keepwarm.bench.client import Message
from keepwarm.bench.report import Report, median, spread
from keepwarm.bench.shapes import SHAPES
from keepwarm.bench.talk import OURS, THEIRS, Plan, Round, Side, Talk
from keepwarm.bench.workers import System
from keepwarm.errors import BadInput

Progress = Callable[[str], None]

WARM_UP_LEN = 600


@dataclass(frozen=True, slots=True)
class Column:
    """One more column of a scenario's table."""

    title: str
    cell: Callable[[Mapping[str, Any]], str]  # of a row


class Scenario(Protocol):
    """What the module of a scenario has. It may also have `SIDES` and `PEERS`, keepwarm and mlx-lm
    in the settings to compare, `COLUMNS`, more columns for its table, or a `table` of its own."""

    def play(self, talk: Talk, number: int) -> None:
        """One round with one server. `number` is another in every round, 0 to warm up."""


def measure(name: str, scenario: Scenario, plan: Plan, on_progress: Progress) -> Report:
    """All rounds with all systems. Raises WorkerFailed or NoAnswer."""
    duel = Duel(name, scenario, plan, on_progress)
    with Servers(plan.model) as servers:
        if plan.is_one_at_a_time:
            for system in duel.systems:
                duel.play([system], servers)
                servers.close()
        else:
            duel.play(duel.systems, servers)
    return duel.report()


class Servers:
    """The servers of one model. Each starts when it is first asked for and stays until the end, so
    that several scenarios may use it. A context manager."""

    def __init__(self, model: str, dtype: str | None = None) -> None:
        """`dtype`, that of keepwarm's weights where it is known: then all may load at once."""
        self._model = model
        self._sides: dict[str, Side] = {}
        self._dtype = dtype

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends them all. They start anew when they are asked for again."""
        for side in self._sides.values():
            side.close()
        self._sides.clear()

    def sides(self, systems: Sequence[System]) -> list[Side]:
        """The servers of some systems, ours first. Raises WorkerFailed."""
        found = []
        for system in systems:
            found.append(self._started(system))
            if self._dtype is None:
                self._dtype = self._ready(found[-1]).portrait["dtype"]
        return [self._ready(side) for side in found]

    def _started(self, system: System) -> Side:
        # What a system is set up with makes it the same, not what its setting is called.
        key = json.dumps([system.name, dict(system.env), dict(system.job)], sort_keys=True)
        if key not in self._sides:
            self._sides[key] = Side(system, {"model": self._model, **self._alike(system)})
        return self._sides[key]

    @staticmethod
    def _ready(side: Side) -> Side:
        if not side.portrait:
            side.wait_ready()
        return side

    def _alike(self, system: System) -> dict[str, Any]:
        """With weights of the same type: on a CPU keepwarm widens them."""
        return {} if system.name == OURS.name else {"dtype": self._dtype}


class Duel:
    """One scenario with all its systems, and what they answered."""

    def __init__(self, name: str, scenario: Scenario, plan: Plan, on_progress: Progress) -> None:
        self._name = name
        self._scenario = scenario
        self._plan = plan
        self._on_progress = on_progress
        self._tokenizer = _tokenizer_of(plan)
        self._talks: list[tuple[System, Talk]] = []
        ours: list[System] = getattr(scenario, "SIDES", [OURS])
        theirs: list[System] = getattr(scenario, "PEERS", [THEIRS])
        self.systems = [*ours, *theirs] if plan.has_peer else ours

    def play(self, systems: Sequence[System], servers: Servers) -> None:
        """All rounds with some of the systems, ours among the first. Raises WorkerFailed or
        NoAnswer."""
        self._on_progress("loading")
        sides = list(zip(systems, servers.sides(systems)))
        for number in range(self._plan.num_rounds + 1):
            # Each begins as often as the others.
            first = number % len(sides)
            for system, side in [*sides[first:], *sides[:first]]:
                words_ = f"{system.name} {system.setting}".strip()
                self._on_progress(f"round {number}, {words_}" if number else f"warming up {words_}")
                talk = Talk(side, self._plan, self._tokenizer)
                if number:
                    self._talks.append((system, talk))
                    self._scenario.play(talk, number)
                elif not side.is_warm:
                    warm_up(talk)
                    side.is_warm = True

    @property
    def has_rows(self) -> bool:
        """Whether some case came to its end."""
        return any(talk.rounds for system, talk in self._talks if system.name == OURS.name)

    def report(self) -> Report:
        """Of all cases that came to their end, also where the last play did not."""
        portrait = self._talks[0][1].side.portrait
        report = Report(self._name, self._plan.model, portrait["device"])
        report.machine["device"] = portrait["device_name"]
        report.rows = self._rows()
        report.bounds = self._bounds()
        return report

    def _rows(self) -> list[dict[str, Any]]:
        """Case by case, ours before theirs. Without ours there is nothing to compare with."""
        found: dict[tuple[str, str, str], list[Round]] = {}
        ours = [talk for system, talk in self._talks if system.name == OURS.name]
        for case in dict.fromkeys(case for talk in ours for case in talk.rounds):
            for system in self.systems:
                rounds = [
                    talk.rounds[case]
                    for one, talk in self._talks
                    if one == system and case in talk.rounds
                ]
                found[case, system.name, system.setting] = rounds
        return [row_of(*place, rounds) for place, rounds in found.items() if rounds]

    def _bounds(self) -> dict[str, Any]:
        """Of one round of the first system, all cases together and each for itself."""
        by_case = {
            case: sum(exchange.max_cached_tokens for exchange in round_.exchanges)
            for case, round_ in max((talk.rounds for _, talk in self._talks), key=len).items()
        }
        return {"max_cached_tokens": sum(by_case.values()), "by_case": by_case}


def warm_up(talk: Talk) -> None:
    """What would otherwise be paid for by the first one who asks."""
    with talk.case("warming up"):
        messages: list[Message] = [{"role": "user", "content": words.text(WARM_UP_LEN, "warm up")}]
        answer = talk.chat(messages, max_tokens=16)
        talk.chat([*messages, answer.message(), messages[0]], max_tokens=16)


def row_of(case: str, system: str, setting: str, rounds: Sequence[Round]) -> dict[str, Any]:
    """One row: tokens of one round, since all are alike, and the times of all."""
    exchanges = rounds[0].exchanges
    answers = [exchange.answer for exchange in exchanges]
    prompt_tokens = sum(answer.prompt_tokens for answer in answers)
    cached_tokens = sum(answer.cached_tokens for answer in answers)
    notes = {key: [round_.notes.get(key) for round_ in rounds] for key in rounds[0].notes}
    return {
        "system": system,
        "setting": setting,
        "case": case,
        "num_requests": len(answers),
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "prefilled_tokens": prompt_tokens - cached_tokens,
        "max_cached_tokens": sum(exchange.max_cached_tokens for exchange in exchanges),
        "ttft_s": [e.answer.ttft_s for round_ in rounds for e in round_.exchanges],
        "total_s": [e.answer.total_s for round_ in rounds for e in round_.exchanges],
        "by_request": {
            "prompt_tokens": [answer.prompt_tokens for answer in answers],
            "cached_tokens": [answer.cached_tokens for answer in answers],
            "max_cached_tokens": [exchange.max_cached_tokens for exchange in exchanges],
        },
        # What was noted once in each round; the last round's where a row has one number.
        **{key: values[-1] for key, values in notes.items()},
        "notes": notes,
    }


def table(report: Report, scenario: Scenario) -> Table:
    """A line for each row, case by case; `most` is what any cache could have spared, the ratio how
    many times sooner keepwarm's first token comes."""
    own: Callable[[Report], Table] | None = getattr(scenario, "table", None)
    if own is not None:
        return own(report)
    more: Sequence[Column] = [*getattr(scenario, "COLUMNS", ()), *_ahead_of(report)]
    titles = [column.title for column in more]
    columns = ("system", "tokens", "cached", "most", "read", "ttft ms", "spread", "ratio", *titles)

    def cells(row: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
        yield from _cells(row, ours)
        yield from (column.cell(row) for column in more)

    return report.table(columns, lines(report, cells))


def _ahead_of(report: Report) -> list[Column]:
    """The cost of idle prefill, where there was any."""
    has_any = any(sum(row["notes"].get("idle_tokens", ())) for row in report.rows)
    return [Column("ahead", _ahead)] if has_any else []


def _ahead(row: Mapping[str, Any]) -> str:
    """`1,480 in 0.9 s`: tokens that were read ahead, and the seconds that took."""
    notes = row["notes"]
    if not sum(notes.get("idle_tokens", ())):
        return ""
    return f"{median(notes['idle_tokens']):,.0f} in {median(notes['idle_s']):.1f} s"


def lines(
    report: Report, cells: Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[str]]
) -> list[list[str]]:
    """Case by case; `cells` has what stands behind the name of a system, from its row and the
    first of ours."""
    found: list[list[str]] = []
    for case in dict.fromkeys(row["case"] for row in report.rows):
        rows = [row for row in report.rows if row["case"] == case]
        ours = next(row for row in rows if row["system"] == OURS.name)
        found.append([case])
        for row in rows:
            found.append([f"  {row['system']} {row['setting']}".rstrip(), *cells(row, ours)])
    return found


def _cells(row: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[str]:
    ttft_s = median(row["ttft_s"])
    yield f"{row['prompt_tokens']:,}"
    yield f"{row['cached_tokens'] / row['prompt_tokens']:.1%}"
    yield f"{row['max_cached_tokens'] / row['prompt_tokens']:.1%}"
    yield f"{row['prefilled_tokens']:,}"
    yield f"{ttft_s * 1e3:,.0f}"
    yield spread(row["ttft_s"])
    yield "" if row is ours else f"{ttft_s / median(ours['ttft_s']):.2f}x"


def _tokenizer_of(plan: Plan) -> Any:
    """As the servers have it. Raises BadInput."""
    if plan.model in SHAPES:
        return words.tokenizer()
    from keepwarm.model.loader import load

    try:
        return load(plan.model, lazy=True)[1]
    except Exception as error:  # whatever mlx-lm makes of files that are no model
        raise BadInput(f"cannot load {plan.model}: {error}") from error
