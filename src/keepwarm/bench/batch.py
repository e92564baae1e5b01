"""Many prompts with one beginning, given at once: keepwarm's engine, which finds the beginning by
itself, beside mlx-lm's batches without a cache, and with the beginning's cache copied by hand.

The systems take turns, each in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from keepwarm.bench.report import Report, median, spread
from keepwarm.bench.workers import System, Worker, WorkerFailed

_MAX_ID = 1000  # random tokens are below: every vocabulary has as many
_MODULE = "keepwarm.bench.batch_worker"
_DEFAULT = {"KEEPWARM_KERNELS": "keepwarm", "KEEPWARM_BLAS": "auto"}
_PLAIN = _DEFAULT | {"KEEPWARM_KERNELS": "mlx-lm"}
OURS = System("keepwarm", "engine.map", _DEFAULT)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: a model by its name, or a shape."""

    model: str | None
    shape: str | None
    num_prompts: int
    shared_len: int
    own_len: int
    reply_len: int
    num_rounds: int

    @property
    def num_measurements(self) -> int:
        return 4 * (self.num_rounds + 1)


def peers(dtype: str) -> list[System]:
    return [
        System("mlx-lm", "no cache", _PLAIN, {"way": "cold", "dtype": dtype}),
        System("mlx-lm", "prefix copied", _PLAIN, {"way": "copied", "dtype": dtype}),
        System(
            "mlx-lm",
            "prefix copied, keepwarm's kernels",
            _DEFAULT,
            {"way": "copied", "has_our_kernels": True},
        ),
    ]


def measure(plan: Plan, on_progress: Callable[[str], None]) -> Report:
    """A peer that cannot run this model is left out, and the report says so. Raises WorkerFailed
    where keepwarm cannot."""
    job = {"model": plan.model, "shape": plan.shape}
    with ExitStack() as stack:
        on_progress("loading")
        ours = stack.enter_context(Worker(OURS, job, _MODULE))
        told = ours.hear()
        report = Report("batch", plan.model or plan.shape or "", told["device"])
        report.machine["device"] = told["device_name"]
        workers, left_out = [ours], {}
        for system in peers(told["dtype"]):
            worker = stack.enter_context(Worker(system, job, _MODULE))
            try:
                worker.hear()
                workers.append(worker)
            except WorkerFailed as fault:
                left_out[_name(system)] = str(fault)
        num_ids = min(_MAX_ID, told["vocab_size"])
        for worker, answers in _rounds(plan, workers, left_out, num_ids, on_progress):
            report.rows.append(_row(plan, worker.system, answers))
        report.bounds["left_out"] = left_out
    return report


def _rounds(
    plan: Plan,
    workers: list[Worker],
    left_out: dict[str, str],
    num_ids: int,
    on_progress: Callable[[str], None],
) -> list[tuple[Worker, list[dict[str, Any]]]]:
    """The first round, with few prompts, is to warm up."""
    answers: dict[str, list[dict[str, Any]]] = {_name(worker.system): [] for worker in workers}
    for number in range(plan.num_rounds + 1):
        asked = {
            "seed": number,
            "num_ids": num_ids,
            "num_prompts": plan.num_prompts if number else min(8, plan.num_prompts),
            "shared_len": plan.shared_len if number else min(64, plan.shared_len),
            "own_len": plan.own_len,
            "reply_len": plan.reply_len,
        }
        for worker in [*workers]:
            name = _name(worker.system)
            on_progress(name)
            try:
                answer = worker.ask(asked)
            except WorkerFailed as fault:
                if worker.system == OURS:
                    raise
                workers.remove(worker)
                left_out[name] = str(fault)
                continue
            if number:
                answers[name].append(answer)
    return [(worker, answers[_name(worker.system)]) for worker in workers]


def _row(plan: Plan, system: System, answers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "system": system.name,
        "setting": system.setting,
        "num_prompts": plan.num_prompts,
        "shared_tokens": plan.shared_len,
        "own_tokens": plan.own_len,
        "reply_tokens": plan.reply_len,
        "cached_tokens": max(answer["cached_tokens"] for answer in answers),
        "seconds": [answer["seconds"] for answer in answers],
    }


def table(report: Report) -> Table:
    """A line for each system: how long it took, and how many times as long as keepwarm."""
    columns = ("system", "prompts", "shared", "cached", "seconds", "spread", "ratio")
    ours = median(report.rows[0]["seconds"])
    lines = [
        (
            f"{row['system']}, {row['setting']}",
            f"{row['num_prompts']:,}",
            f"{row['shared_tokens']:,}",
            f"{row['cached_tokens']:,}",
            f"{median(row['seconds']):.2f}",
            spread(row["seconds"]),
            "" if row["system"] == "keepwarm" else f"{median(row['seconds']) / ours:.2f}x",
        )
        for row in report.rows
    ]
    lines += [(name, "", "", "", "cannot", "", "") for name in report.bounds.get("left_out", ())]
    return report.table(columns, lines)


def _name(system: System) -> str:
    return f"{system.name}, {system.setting}"
