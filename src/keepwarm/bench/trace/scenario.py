"""`keepwarm bench trace`: every system at every budget, as a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keepwarm.bench.report import Report
from keepwarm.bench.trace.bound import Bounds
from keepwarm.bench.trace.ours import Replay
from keepwarm.bench.trace.policies import BOUND, PEER, POLICIES
from keepwarm.bench.trace.read import read_trace
from keepwarm.bench.trace.sizes import Sizes
from keepwarm.bench.trace.stream import Trace
from keepwarm.bench.trace.tally import Tally
from keepwarm.bench.trace.theirs import PeerReplay
from keepwarm.errors import BadInput

# Words, requests done and requests in all.
Progress = Callable[[str, int, int], None]
_PROGRESS_EVERY = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """What to replay."""

    files: Sequence[Path]
    sizes: Sizes
    budgets_bytes: Sequence[int]
    policies: Sequence[str] = POLICIES
    num_users: int = 8
    num_sessions: int | None = None
    num_requests: int | None = None  # of each trace
    num_skipped: int = 0  # of each trace, from its start


def measure(plan: Plan, on_progress: Progress) -> Report:
    """Raises BadInput for what is no trace or no policy."""
    report = Report("trace", plan.sizes.name, "states by their sizes")
    # By trace, with room for all.
    report.bounds["max_cached_tokens"] = most_tokens = {}
    for file in plan.files:
        on_progress(f"reading {file.name}", 0, 1)
        trace = read_trace(file, num_users=plan.num_users, num_sessions=plan.num_sessions)
        left = trace.requests[plan.num_skipped :][: plan.num_requests]
        if not left:
            raise BadInput(f"{trace.name} has but {len(trace.requests)} requests: skip fewer")
        trace = replace(trace, requests=left)
        bounds = Bounds(trace, plan.sizes)
        most_tokens[trace.name] = int(bounds.most().cached_tokens)
        roomy: dict[str, tuple[int, Tally]] = {}  # by policy: a budget that held all
        for budget_bytes in plan.budgets_bytes:
            for policy in plan.policies:
                enough, tally = roomy.get(policy, (budget_bytes + 1, None))
                if tally is None or enough > budget_bytes:
                    tally = _replayed(trace, plan.sizes, budget_bytes, policy, on_progress)
                if tally.is_all_held:
                    roomy[policy] = budget_bytes, tally
                report.rows.append(_row(trace, budget_bytes, policy, tally))
            report.rows.append(_bound_row(trace, plan.sizes, budget_bytes, bounds))
    return report


def _replayed(
    trace: Trace, sizes: Sizes, budget_bytes: int, policy: str, on_progress: Progress
) -> Tally:
    replay = (
        PeerReplay(trace, sizes, budget_bytes)
        if policy == PEER
        else Replay(trace, sizes, budget_bytes, policy)
    )
    words = f"{trace.name}, {_gb(budget_bytes)} GB, {policy}"

    def on_request() -> None:
        if replay.tally.num_requests % _PROGRESS_EVERY == 0:
            on_progress(words, replay.tally.num_requests, len(trace.requests))

    return replay.run(on_request)


def _row(trace: Trace, budget_bytes: int, policy: str, tally: Tally) -> dict[str, Any]:
    return {
        "system": PEER if policy == PEER else "keepwarm",
        "policy": policy,
        "trace": trace.name,
        "budget_bytes": budget_bytes,
        "num_requests": tally.num_requests,
        "prompt_tokens": tally.prompt_tokens,
        "cached_tokens": tally.cached_tokens,
        "prefilled_tokens": tally.prompt_tokens - tally.cached_tokens,
        "prefill_s": tally.prefill_s,
        "saved_s": tally.saved_s,
        "held_bytes": tally.peak_bytes,
        "earned_tokens": {str(kind): count for kind, count in sorted(tally.earned.items())},
    }


def _bound_row(trace: Trace, sizes: Sizes, budget_bytes: int, bounds: Bounds) -> dict[str, Any]:
    tally, bound = Tally(sizes, trace.block_len), bounds.at(budget_bytes)
    for request in trace.requests:
        tally.add(request, 0)
    row = _row(trace, budget_bytes, BOUND, tally)
    cached_tokens = int(bound.cached_tokens)
    return row | {
        "system": BOUND,
        "cached_tokens": cached_tokens,
        "prefilled_tokens": tally.prompt_tokens - cached_tokens,
        "saved_s": bound.saved_s,
        "held_bytes": budget_bytes,
    }


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 10**9:g}"
