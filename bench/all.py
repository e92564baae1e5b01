"""Every scenario with the small shapes of four kinds of model, kept in bench/results.

    python -m bench.all [--models M,M] [--scenarios S,S] [--traces PATH]

The servers of a model start once and play all its scenarios: all of each with the first model, less
of some with the others, or it would take hours. On 2 CPU cores it takes about an hour;
`make docs` then makes the page.
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
from keepwarm.bench.trace.policies import ORACLE, POLICIES
from keepwarm.bench.trace.read import trace_files
from keepwarm.bench.trace.sizes import sizes_named
from keepwarm.bench.trace.tables import tables

MODELS = ("qwen3_5-mini", "nemotron_h-mini", "gpt_oss-mini", "qwen3-mini")
# What counts there is what is found: smaller shapes find the same. One kind of model more.
SMALL = ("qwen3_5-small", "nemotron_h-small", "gpt_oss-small", "qwen3-small", "mamba2-small")
IN_SMALL = {"branch": SMALL, "tools": SMALL[:4], "memory": SMALL[1:4]}
NUM_ROUNDS = {"agent": 1, "burst": 1, "mixed": 3, "prefix": 2}
LESS = {"burst": {"requests": "6"}, "prefix": {"lengths": "2000"}}  # with all but the first model
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
        _play(model, [name for name in SCENARIOS if name in names and name not in IN_SMALL])
        if "prefill" in names:
            _prefill(model)
    for name, entry in SCENARIOS.items():
        if name in names and entry.model not in MODELS:  # one that shows more
            _play(entry.model, [name])
    for model in SMALL:
        _play(model, [name for name, those in IN_SMALL.items() if name in names and model in those])
    if args.traces is not None:
        for sizes in SIZES:
            _trace(args.traces, sizes)


def _play(model: str, names: list[str]) -> None:
    with duel.Servers(model) as servers:
        for name in names:
            entry, changed = SCENARIOS[name], _changed(name, model)
            options = {o.name: o.read(changed.get(o.name, o.default)) for o in entry.options}
            num_rounds = NUM_ROUNDS.get(name, entry.num_rounds)
            plan = Plan(model, num_rounds, options=options)
            module = entry.module(name)
            found = duel.Duel(name, module, plan, _progress(f"{model}, {name}"))
            found.play(found.systems, servers)
            report = found.report()
            flags = "".join(f" --{flag} {words}" for flag, words in changed.items())
            report.command = f"keepwarm bench {name} --model {model}{flags} --rounds {num_rounds}"
            _keep(report)
            Console().print(duel.table(report, module))


def _changed(name: str, model: str) -> dict[str, str]:
    return {} if model == MODELS[0] else LESS.get(name, {})


def _prefill(model: str) -> None:
    plan = prefill.Plan(None, model, LENGTHS, 5)
    report = prefill.measure(plan, _progress(f"{model}, prefill"))
    report.command = f"keepwarm bench prefill --shape {model}"
    _keep(report)
    Console().print(prefill.table(report))


def _trace(path: Path, sizes: str) -> None:
    budgets_bytes = [gb * 10**9 for gb in BUDGETS_GB]
    policies = (*POLICIES, ORACLE)
    plan = trace.Plan(
        trace_files(path), sizes_named(sizes), budgets_bytes, policies, num_requests=NUM_REQUESTS
    )
    report = trace.measure(plan, lambda *_: None)
    report.command = (
        f"keepwarm bench trace {path.name} --model {sizes} --policies {','.join(policies)}"
        f" --requests {NUM_REQUESTS}"
    )
    _keep(report)
    for table in tables(report):
        Console().print(table)


def _progress(words: str) -> Callable[[str], None]:
    began = monotonic()

    def on_progress(step: str) -> None:
        print(f"{monotonic() - began:4.0f} s: {words}: {step}", flush=True)

    return on_progress


def _keep(report: Report) -> None:
    print(f"kept: {results.keep(report).name}", flush=True)


if __name__ == "__main__":
    main()
