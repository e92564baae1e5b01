"""The tables of docs/benchmarks.md: a line or two of every scenario for each kind of model, and every
line of all pages where keepwarm is behind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.bench.report import Report, median
from keepwarm.bench.trace.policies import BOUND, ORACLE
from keepwarm.bench.trace.policies import OURS as WORTH
from keepwarm.bench.trace.tables import points_ahead

OURS, THEIRS = "keepwarm", "mlx-lm"
IDLE = "idle prefill"

Row = Mapping[str, Any]

# Kinds of model by what their names begin with, in the order of the columns.
KINDS = {"qwen3_5": "Qwen3.5", "nemotron_h": "Nemotron-H", "gpt_oss": "gpt-oss", "qwen3-": "Qwen3"}


@dataclass(frozen=True, slots=True)
class Line:
    """What a line says of one report, if that has the case."""

    scenario: str
    words: str
    case: str  # a pattern
    cell: Callable[[Row, Row], str]  # of our row and theirs
    setting: str = ""  # of theirs, a pattern


def _ratio(measure: Callable[[Row], float]) -> Callable[[Row, Row], str]:
    """How many times as much of it mlx-lm takes."""
    return lambda ours, theirs: _times(measure(theirs) / measure(ours))


def _times(ratio: float) -> str:
    return f"{ratio:.2f}x" if ratio < 9.95 else f"{ratio:.0f}x"


def _ttft_s(row: Row) -> float:
    return median(row["ttft_s"])


def _noted(name: str) -> Callable[[Row], float]:
    return lambda row: median(row["notes"][name])


def _found(ours: Row, theirs: Row) -> str:
    return " / ".join(
        f"{row['cached_tokens'] / row['prompt_tokens']:.1%}" for row in (ours, theirs)
    )


def _steps(ours: Row, theirs: Row) -> str:
    return " / ".join(f"{_ttft_s(row) / _noted('step_s')(row):.1f}" for row in (ours, theirs))


def _miss(ours: Row, theirs: Row) -> str:
    return " / ".join(f"{row['miss_tokens']:,}" for row in (ours, theirs))


def _s_per_token(row: Row) -> float:
    return 1 / _noted("tokens_per_s")(row)


def _bytes(row: Row) -> float:
    return float(row.get("large_bytes", row.get("held_bytes", 0)))


_TTFT = _ratio(_ttft_s)
LINES = (
    Line("chat", "prompt tokens found, ours / theirs", r"\d+ turns", _found),
    Line("chat", "first token of a turn", r"\d+ turns", _TTFT),
    Line("agent", "a new user of the same system prompt: first token", "system, warm", _TTFT),
    Line("agent", "of the same tools, without a system prompt", "tools only, warm", _TTFT),
    Line("agent", "another question about a document", "document, warm", _TTFT),
    Line("tools", "10 steps, thoughts not sent back: found", "not echoed", _found),
    Line("branch", "fifth turn edited: tokens missed of what could be found", "even, edit 5", _miss),
    Line("branch", "fifth answer again: the same", "even, again 5", _miss),
    Line("burst", "6 at once: all have a first token", "6 cold", _ratio(_noted("all_firsts_s"))),
    Line("burst", "32 at once", "32 cold", _ratio(_noted("all_firsts_s"))),
    Line("burst", "6 at once with nothing in common", "6 apart", _ratio(_noted("all_firsts_s"))),
    Line("burst", "6 known ones at once: all replies done", "6 warm", _ratio(_noted("all_done_s"))),
    Line("mixed", "longest gap of streams, 8,000 tokens being read", "8,000 tokens",
         _ratio(_noted("longest_gap_s"))),
    Line("mixed", "tokens a second, 8 streams", "8 streams", _ratio(_s_per_token)),
    Line("prefix", "2,000 new tokens: first token", "2,000, one message, cold", _TTFT),
    Line("prefix", "the same again: first token, in decode steps", "2,000, exact", _steps),
    Line("memory", "several chats in turn: found", r"\d chats", _found),
    Line("memory", "bytes held after them", r"\d chats", _ratio(_bytes), ".*"),
)  # fmt: skip


def table(reports: Sequence[Report], device: str) -> str:
    """In markdown, for all that was measured on one device; nothing where that is nothing."""
    of_device = [report for report in reports if report.device == device]
    lines = [(line, [_cell(line, kind, of_device) for kind in KINDS]) for line in LINES]
    lines = [(line, cells) for line, cells in lines if any(cells)]
    shown = [i for i in range(len(KINDS)) if any(cells[i] for _, cells in lines)]
    if not shown:
        return ""
    code = sorted({r.versions["code"] for r in of_device if "code" in r.versions})
    written = [["", "", *(list(KINDS.values())[i] for i in shown)]]
    written.append(["---", "---", *["---:"] * len(shown)])
    for line, cells in lines:
        written.append([_link(line.scenario), line.words, *(cells[i] for i in shown)])
    return "\n\n".join([*([f"Code of {', '.join(code)}."] if code else []), _markdown(written)])


def traces(reports: Sequence[Report]) -> str:
    """For each trace and model the share of tokens that ours finds, and how far ahead of the best
    other policy that is, by budget."""
    budgets = sorted({row["budget_bytes"] for report in reports for row in report.rows})
    heads = [f"{budget_bytes / 10**9:g} GB" for budget_bytes in budgets]
    written = [["", "sizes of", *heads], ["---", "---", *["---:"] * len(heads)]]
    for report in reports:
        for name in dict.fromkeys(row["trace"] for row in report.rows):
            rows = [row for row in report.rows if row["trace"] == name]
            written.append([name, report.model, *(_ahead(rows, budget) for budget in budgets)])
    return _markdown(written)


# Ratios closer to 1 than this are not told: times scatter.
_NOTICED = 0.97
# What is said of a case, if both sides have it: how many times as much of it mlx-lm takes.
_MEASURES: dict[str, Callable[[Row], float]] = {
    "first token": _ttft_s,
    "all first tokens": _noted("all_firsts_s"),
    "all replies done": _noted("all_done_s"),
    "longest gap of a stream": _noted("longest_gap_s"),
    "tokens a second": _s_per_token,
}


def losses(reports: Sequence[Report]) -> str:
    """Every line where keepwarm as it comes is slower than mlx-lm, or finds less; in markdown."""
    written = [["page", "model", "case", "", "", "requests"], ["---"] * 4 + ["---:"] * 2]
    for report in reports:
        for case in dict.fromkeys(row["case"] for row in report.rows if "case" in row):
            sides = [_default(report, case, system) for system in (OURS, THEIRS)]
            ours, theirs = sides
            if ours is None or theirs is None:
                continue
            where = f"{report.model}{', GPU' if report.device == 'gpu' else ''}"
            for words, behind in _behind(ours, theirs):
                count = str(len(ours["ttft_s"]))
                written.append([_link(report.scenario), where, case, words, behind, count])
    return _markdown(written) if len(written) > 2 else "None."


def _default(report: Report, case: str, system: str) -> Row | None:
    """The row of a system as it comes."""
    rows = [row for row in report.rows if row.get("case") == case and row["system"] == system]
    return rows[0] if rows else None


def _behind(ours: Row, theirs: Row) -> Iterator[tuple[str, str]]:
    for words, measure in _MEASURES.items():
        try:
            ratio = measure(theirs) / measure(ours)
        except (KeyError, TypeError, ZeroDivisionError):  # not of this scenario
            continue
        if ratio < _NOTICED:
            yield words, _times(ratio)
    lacking = theirs.get("cached_tokens", 0) - ours.get("cached_tokens", 0)
    if lacking > 0:
        yield "tokens found", f"{lacking:,} of {ours['prompt_tokens']:,} less"


def _link(scenario: str) -> str:
    return f"[{scenario}](benchmarks/{scenario}.md)"


def _ahead(rows: Sequence[Row], budget_bytes: int) -> str:
    shares = {
        row["policy"]: 100 * row["cached_tokens"] / row["prompt_tokens"]
        for row in rows
        if row["budget_bytes"] == budget_bytes and row["policy"] not in (BOUND, ORACLE)
    }
    ours = shares.pop(WORTH, None)
    if ours is None:
        return ""
    return f"{ours:.1f} ({points_ahead(ours, shares.values())})" if shares else f"{ours:.1f}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _cell(line: Line, kind: str, reports: Sequence[Report]) -> str:
    """Of the first report that has both sides of the case."""
    for report in reports:
        if report.scenario == line.scenario and report.model.startswith(kind):
            ours = _best(report, line, OURS, f"|{IDLE}")
            theirs = _best(report, line, THEIRS, line.setting)
            if ours is not None and theirs is not None:
                return line.cell(ours, theirs)
    return ""


def _best(report: Report, line: Line, system: str, setting: str) -> Row | None:
    """Of several settings the one that finds most, with the fewest bytes."""
    rows = [
        row
        for row in report.rows
        if row["system"] == system
        and re.fullmatch(setting, row["setting"])
        and re.fullmatch(line.case, row["case"])
    ]
    return min(rows, key=lambda row: (-row["cached_tokens"], _bytes(row)), default=None)
