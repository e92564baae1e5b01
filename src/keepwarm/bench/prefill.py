"""Prefill beside mlx-lm: tokens a second until the first token of a prompt that nobody has read.

The systems take turns, so that what else the machine does hits all of them. On a CPU mlx-lm runs
twice: with the BLAS and in the numbers that keepwarm computes with, and as it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from keepwarm.bench.report import Report, median, spread
from keepwarm.bench.workers import System, Worker, WorkerFailed

_MAX_ID = 1000  # random tokens are below: every vocabulary has as many

# All that is chosen by the environment, so that nothing comes from that of the caller.
_DEFAULT = {"KEEPWARM_KERNELS": "keepwarm", "KEEPWARM_BLAS": "auto"}
_PLAIN = _DEFAULT | {"KEEPWARM_KERNELS": "mlx-lm"}
OURS = System("keepwarm", "default", _DEFAULT)

Progress = Callable[[str], None]  # called before each measurement


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: a model by its name, or a shape."""

    model: str | None
    shape: str | None
    lengths: Sequence[int]
    num_rounds: int

    @property
    def num_measurements(self) -> int:
        """At most, one to warm up included."""
        return 3 * len(self.lengths) * (self.num_rounds + 1)


def measure(plan: Plan, on_progress: Progress) -> Report:
    """A peer that cannot run this model is left out, and the report says so. Raises WorkerFailed
    where keepwarm cannot."""
    job = {"model": plan.model, "shape": plan.shape}
    with ExitStack() as stack:
        on_progress("loading")
        workers = {OURS: stack.enter_context(Worker(OURS, job))}
        told = {OURS: workers[OURS].hear()}
        others = [stack.enter_context(Worker(system, job)) for system in peers(told[OURS])]
        left_out: dict[str, str] = {}
        for worker in others:
            with _leaving_out(worker.system, workers, left_out):
                told[worker.system] = worker.hear()
                workers[worker.system] = worker
        report = Report("prefill", plan.model or plan.shape or "", told[OURS]["device"])
        report.machine["device"] = told[OURS]["device_name"]
        num_ids = min(_MAX_ID, *(portrait["vocab_size"] for portrait in told.values()))
        for length in plan.lengths:
            answers = _rounds(plan, workers, left_out, length, num_ids, on_progress)
            report.rows += [
                _row(system, told[system], length, answers[system]) for system in workers
            ]
        report.bounds["left_out"] = left_out
    return report


def peers(ours: Mapping[str, Any]) -> list[System]:
    """Whom to compare with, by what our worker told: BLAS and the type of the weights are of our
    choice on a CPU only."""
    as_it_comes = System("mlx-lm", "default", _PLAIN | {"KEEPWARM_BLAS": "off"})
    if ours["device"] != "cpu":
        return [as_it_comes]
    return [System("mlx-lm", "same BLAS, dtype", _PLAIN, {"dtype": ours["dtype"]}), as_it_comes]


@contextmanager
def _leaving_out(
    system: System, workers: dict[System, Worker], left_out: dict[str, str]
) -> Iterator[None]:
    """A peer that fails within is asked no more. Mutates both."""
    try:
        yield
    except WorkerFailed as fault:
        if system == OURS:
            raise
        workers.pop(system, None)
        left_out[_name(system.name, system.setting)] = str(fault)


def _rounds(
    plan: Plan,
    workers: dict[System, Worker],
    left_out: dict[str, str],
    length: int,
    num_ids: int,
    on_progress: Progress,
) -> dict[System, list[dict[str, Any]]]:
    answers: dict[System, list[dict[str, Any]]] = {system: [] for system in workers}
    for number in range(plan.num_rounds + 1):
        # The same prompt for all, another in each round; each begins as often as the others.
        asked = {"prompt_tokens": length, "seed": number, "num_ids": num_ids}
        order = list(workers)
        for system in order[number % len(order) :] + order[: number % len(order)]:
            on_progress(f"{length:,} tokens, {system.name}, {system.setting}")
            with _leaving_out(system, workers, left_out):
                answer = workers[system].ask(asked)
                if number:  # the first is to warm up
                    answers[system].append(answer)
    return answers


def _row(
    system: System, portrait: dict[str, Any], length: int, answers: list[dict[str, Any]]
) -> dict[str, Any]:
    cached_tokens = max(answer["cached_tokens"] for answer in answers)
    return {
        "system": system.name,
        "setting": system.setting,
        "blas": portrait["blas"],
        "dtype": portrait["dtype"],
        "prompt_tokens": length,
        "cached_tokens": cached_tokens,
        "prefilled_tokens": length - cached_tokens,
        "ttft_s": [answer["ttft_s"] for answer in answers],
    }


def table(report: Report) -> Table:
    """A line for each row: its speed, and how many times that keepwarm's is."""
    columns = ("system", "tokens", "BLAS", "dtype", "tok/s", "spread", "ratio")
    ours = {row["prompt_tokens"]: speed(row) for row in report.rows if row["system"] == "keepwarm"}
    lines = []
    for row in report.rows:
        ratio = ours[row["prompt_tokens"]] / speed(row)
        lines.append(
            (
                _name(row["system"], row["setting"]),
                f"{row['prompt_tokens']:,}",
                row["blas"] or "-",
                row["dtype"],
                f"{speed(row):,.0f}",
                spread(row["ttft_s"]),
                "" if row["system"] == "keepwarm" else f"{ratio:.2f}x",
            )
        )
    lines += [(name, "", "", "", "cannot", "", "") for name in report.bounds.get("left_out", ())]
    return report.table(columns, lines)


def _name(system: str, setting: str) -> str:
    return f"{system}, {setting}"


def speed(row: dict[str, Any]) -> float:
    """Prompt tokens a second, in the median round."""
    return float(row["prompt_tokens"] / median(row["ttft_s"]))
