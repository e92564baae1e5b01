"""What `keepwarm bench trace` shows of each trace: the policies side by side, and at which kinds of
checkpoint ours found what it found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from keepwarm.bench.report import Report
from keepwarm.bench.trace.policies import BOUND, ORACLE, OURS

Rows = Sequence[Mapping[str, Any]]  # of a report
Line = tuple[str, ...]

# What is shared out, and of which whole.
_MEASURES = (
    ("tokens", "cached_tokens", "prompt_tokens"),
    ("time", "saved_s", "prefill_s"),
)


def tables(report: Report) -> list[Table]:
    """Two for each trace, or one where ours found nothing; their titles say which."""
    shown: list[Table] = []
    for name in dict.fromkeys(row["trace"] for row in report.rows):
        rows = [row for row in report.rows if row["trace"] == name]
        title = f"{name}: prompt tokens found, prefill seconds saved, %"
        shown.append(_titled(title, _policies(report, rows)))
        ours = [row for row in rows if row["policy"] == OURS]
        if any(row["earned_tokens"] for row in ours):
            title = f"{name}: where {OURS} found it, % of tokens"
            shown.append(_titled(title, _kinds(report, ours)))
    return shown


def _titled(title: str, table: Table) -> Table:
    table.title = title
    table.columns[0].no_wrap = True  # the budget: nothing can be read without
    table.show_edge = False  # two columns less, and all policies fit a usual terminal
    return table


def _policies(report: Report, rows: Rows) -> Table:
    """`ahead` is how many points ours has more than the best of the others, `of it` how many
    percent it reaches of the bound, the most that is possible."""
    policies = [p for p in dict.fromkeys(row["policy"] for row in rows) if p != BOUND]
    lines: list[Line] = []
    for words, part, whole in _MEASURES:
        lines.append((words, *[""] * (len(policies) + 3)))
        for budget_bytes in dict.fromkeys(row["budget_bytes"] for row in rows):
            found = [row for row in rows if row["budget_bytes"] == budget_bytes]
            shares = {row["policy"]: _percent(row[part], row[whole]) for row in found}
            lines.append((_gb(budget_bytes), *_cells(shares, policies)))
    return report.table(["GB", *policies, "ahead", BOUND, "of it"], lines)


def _cells(shares: Mapping[str, float], policies: Sequence[str]) -> Iterator[str]:
    for policy in policies:
        yield f"{shares[policy]:.1f}"
    others = [shares[policy] for policy in policies if policy not in (OURS, ORACLE)]
    ours, bound = shares.get(OURS), shares[BOUND]
    yield points_ahead(ours, others) if ours is not None and others else ""
    yield f"{bound:.1f}"
    yield f"{_percent(ours, bound):.1f}" if ours is not None else ""


def points_ahead(ours: float, others: Iterable[float]) -> str:
    """Of the best of the others: `+1.50`."""
    return f"{round(ours - max(others), 2) + 0.0:+.2f}"  # never -0.00


def _kinds(report: Report, ours: Rows) -> Table:
    kinds = sorted({kind for row in ours for kind in row["earned_tokens"]})
    lines: list[Line] = []
    for row in ours:
        earned = [row["earned_tokens"].get(kind, 0) for kind in kinds]
        cells = [f"{_percent(tokens, row['prompt_tokens']):.2f}" for tokens in earned]
        lines.append((_gb(row["budget_bytes"]), *cells))
    return report.table(["GB", *(f"at {kind}" for kind in kinds)], lines)


def _percent(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 10**9:g}"
