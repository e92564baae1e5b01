"""Every scenario with the small shapes of four kinds of model, kept in bench/results.

    python -m bench.all [--models M,M] [--scenarios S,S] [--traces PATH]

The servers of a model start once and play all its scenarios. On 2 CPU cores it takes about two
minutes for each scenario and model; `make docs` then makes the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from rich.console import Console

from bench import results
from keepwarm.bench import duel, prefill
from keepwarm.bench.report import Report
from keepwarm.bench.scenarios import SCENARIOS
from keepwarm.bench.talk import Plan
from keepwarm.bench.trace import scenario as trace
from keepwarm.bench.trace.read import trace_files
from keepwarm.bench.trace.sizes import sizes_named

MODELS = ("qwen3_5-mini", "nemotron_h-mini", "gpt_oss-mini", "qwen3-mini")
LENGTHS = (512, 2048)
SIZES = ("qwen3.5-35b-a3b", "nemotron-h-30b")
BUDGETS_GB = (4, 8, 16, 32, 64, 128)
NUM_REQUESTS = 500  # of each trace: all of them take hours


def main() -> None:
    parser = argparse.ArgumentParser(description="Every scenario with small shapes.")
    parser.add_argument("--models", default=",".join(MODELS), metavar="M,M")
    parser.add_argument("--scenarios", default=",".join([*SCENARIOS, "prefill"]), metavar="S,S")
    parser.add_argument("--traces", type=Path, metavar="PATH", help="also `trace`, with these")
    args = parser.parse_args()
    names, models = args.scenarios.split(","), args.models.split(",")
    for model in models:
        _play(model, [name for name in SCENARIOS if name in names])
        if "prefill" in names:
            _prefill(model)
    for name, entry in SCENARIOS.items():
        if name in names and entry.model not in models:  # one that shows more
            _play(entry.model, [name])
    if args.traces is not None:
        for sizes in SIZES:
            _trace(args.traces, sizes)


def _play(model: str, names: list[str]) -> None:
    with duel.Servers(model) as servers:
        for name in names:
            entry = SCENARIOS[name]
            options = {option.name: option.read(option.default) for option in entry.options}
            plan = Plan(model, entry.num_rounds, options=options)
            module = entry.module(name)
            found = duel.Duel(name, module, plan, _progress(f"{model}, {name}"))
            found.play(found.systems, servers)
            report = found.report()
            report.command = f"keepwarm bench {name} --model {model}"
            _keep(report)
            Console().print(duel.table(report, module))


def _prefill(model: str) -> None:
    plan = prefill.Plan(None, model, LENGTHS, 5)
    report = prefill.measure(plan, _progress(f"{model}, prefill"))
    report.command = f"keepwarm bench prefill --shape {model}"
    _keep(report)
    Console().print(prefill.table(report))


def _trace(path: Path, sizes: str) -> None:
    budgets_bytes = [gb * 10**9 for gb in BUDGETS_GB]
    plan = trace.Plan(
        trace_files(path), sizes_named(sizes), budgets_bytes, num_requests=NUM_REQUESTS
    )
    report = trace.measure(plan, lambda *_: None)
    report.command = f"keepwarm bench trace {path.name} --model {sizes} --requests {NUM_REQUESTS}"
    _keep(report)
    Console().print(trace.table(report))


def _progress(words: str) -> Callable[[str], None]:
    began = monotonic()

    def on_progress(step: str) -> None:
        print(f"{monotonic() - began:4.0f} s: {words}: {step}", flush=True)

    return on_progress


def _keep(report: Report) -> None:
    print(f"kept: {results.keep(report).name}", flush=True)


if __name__ == "__main__":
    main()
