"""`keepwarm bench NAME`: one scenario of many; each adds its own flags. What takes long to import
is imported when it is needed."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepwarm.bench.scenarios import SCENARIOS, Entry
from keepwarm.errors import BadInput
from keepwarm.model.names import BUILT_IN, source_of

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from keepwarm.bench.report import Report

_DUEL_EXAMPLES = """\
examples:
  keepwarm bench {name}
  keepwarm bench {name} --model nemotron_h-mini --json {name}.json
  keepwarm bench {name} --model ./my-model --peer none

Both systems serve over HTTP, in processes of their own, with the same weights, BLAS and types, and get
the same requests in turn. A shape computes with random weights, and a script chooses its tokens; a
model of yours chooses its own.
"""

_PREFILL_EXAMPLES = """\
examples:
  keepwarm bench prefill
  keepwarm bench prefill --shape qwen3_5-9b --lengths 2048,20480
  keepwarm bench prefill --model ./my-model --json prefill.json

Each system runs in a process of its own; they take turns. mlx-lm reads with its own generator, its
own loops and its own chunks. keepwarm reads into an empty cache, and stores its checkpoints.
"""

_BATCH_EXAMPLES = """\
examples:
  keepwarm bench batch
  keepwarm bench batch --shape qwen3_5-mini --prompts 200 --shared 1490
  keepwarm bench batch --model ./my-model --json batch.json

keepwarm's engine gets plain prompts and finds by itself what they have in common. mlx-lm's batches
read all of each, or start from a copy of what was read of the common beginning, which is then known.
Each runs in a process of its own; they take turns.
"""

_TRACE_EXAMPLES = """\
examples:
  keepwarm bench trace ./traces
  keepwarm bench trace ./traces/sessions.tar.xz --budgets 8,32 --policies worth,lru
  keepwarm bench trace ./traces --model nemotron-h-30b --json trace.json

Prints for each trace the share of prompt tokens that each policy finds in its cache, and the share of
prefill seconds that this saves. "ahead" is how many points worth has more than the best other policy.
"of it" is how many percent of the bound that is; no cache of that size can save more than the bound.
A last table says at which kinds of checkpoints the tokens were found.

worth is keepwarm's policy. lru, fifo, type (mlx-lm's order), marconi and oracle (which knows the future)
choose in its place. mlx-lm is mlx-lm's own cache. No model runs: stored states have their sizes only,
and seconds are computed from the arithmetic. The traces have no replies, so no system stores any.
"""


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "bench",
        help="measure keepwarm beside mlx-lm",
        description="Measure what keepwarm does on this machine, beside mlx-lm as it is installed.",
    )
    scenarios = parser.add_subparsers(dest="scenario", metavar="NAME", required=True)
    for name, entry in SCENARIOS.items():
        _add_duel(scenarios, name, entry)
    _add_prefill(scenarios)
    _add_batch(scenarios)
    _add_trace(scenarios)


def _add_duel(scenarios: Any, name: str, entry: Entry) -> None:
    parser = scenarios.add_parser(
        name,
        help=entry.help,
        description=entry.description,
        epilog=_DUEL_EXAMPLES.format(name=name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default=entry.model, metavar="M",
        help="a shape with random weights, or a model's folder or name (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--peer", choices=("mlx-lm", "none"), default="mlx-lm",
        help="the system to compare with (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--rounds", type=int, default=entry.num_rounds, metavar="N",
        help="how often everything is measured (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="run the systems one after another, if memory is too small for both",
    )
    for option in entry.options:
        parser.add_argument(
            f"--{option.name}", default=option.default, metavar="N,N",
            help=f"{option.help} (default: %(default)s)",
        )  # fmt: skip
    _add_outputs(parser)
    parser.set_defaults(run=run_duel, scenario=name)


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument(
        "--plot", type=Path, metavar="DIR", help="draw the figures, as a PNG in DIR"
    )


def run_duel(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput."""
    _check_rounds(args)
    _check_outputs(args)
    entry = SCENARIOS[args.scenario]

    from keepwarm.bench import duel
    from keepwarm.bench.shapes import SHAPES
    from keepwarm.bench.talk import Plan

    if args.model not in SHAPES:
        source_of(args.model)  # raises where there is no built-in model
    options = {option.name: option.read(getattr(args, option.name)) for option in entry.options}
    plan = Plan(args.model, args.rounds, args.peer != "none", args.one_at_a_time, options)
    module = entry.module(args.scenario)
    with _bar() as progress:
        task = progress.add_task("", total=None)
        report = duel.measure(
            args.scenario, module, plan, lambda words: progress.update(task, description=words)
        )
    _show(lambda found: [duel.table(found, module)], report, args)
    return 0


def _check_rounds(args: argparse.Namespace) -> None:
    if args.rounds < 1:
        raise BadInput(f"--rounds must be at least 1, not {args.rounds}")


def _check_outputs(args: argparse.Namespace) -> None:
    """Not after minutes of measuring."""
    if args.json is not None and args.json.is_dir():
        raise BadInput(f"--json: {args.json} is a folder; name a file in it")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise BadInput(f"--json: there is no folder {args.json.parent}; make it first")
    if args.plot is not None:
        from keepwarm.bench import plot

        plot.check()
        if args.plot.exists() and not args.plot.is_dir():
            raise BadInput(f"--plot: {args.plot} is not a folder")


def _add_prefill(scenarios: Any) -> None:
    parser = scenarios.add_parser(
        "prefill",
        help="how fast a new prompt is read",
        description="Measure how fast a prompt is read that is not in the cache.",
        epilog=_PREFILL_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", metavar="M", help=f"a folder or a name (default: {BUILT_IN})")
    which.add_argument(
        "--shape", metavar="NAME", help="random weights in the shape of a real model"
    )
    parser.add_argument(
        "--lengths",
        default="512,2048",
        metavar="N,N",
        help="tokens of each prompt (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        metavar="N",
        help="how often each is measured (default: %(default)s)",
    )
    _add_outputs(parser)
    parser.set_defaults(run=run_prefill)


def run_prefill(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput."""
    lengths = _lengths(args.lengths)
    _check_rounds(args)
    _check_outputs(args)
    if args.shape is not None:
        _check_shape(args.shape)

    model = None if args.shape else args.model or BUILT_IN
    if model is not None:
        source_of(model)  # raises where there is no built-in model

    from keepwarm.bench import prefill

    report = _measured(prefill.measure, prefill.Plan(model, args.shape, lengths, args.rounds))
    _show(lambda found: [prefill.table(found)], report, args)
    return 0


def _add_batch(scenarios: Any) -> None:
    parser = scenarios.add_parser(
        "batch",
        help="how fast many prompts with one beginning are answered",
        description="Measure how long many prompts with one beginning take, given at once in Python.",
        epilog=_BATCH_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", metavar="M", help=f"a folder or a name (default: {BUILT_IN})")
    which.add_argument(
        "--shape", metavar="NAME", help="random weights in the shape of a real model"
    )
    for flag, default, words in (
        ("--prompts", 48, "how many there are"),
        ("--shared", 1024, "tokens that all begin with"),
        ("--own", 16, "tokens of each behind that"),
        ("--reply", 16, "tokens of each reply"),
        ("--rounds", 3, "how often each is measured"),
    ):
        parser.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{words} (default: %(default)s)"
        )
    _add_outputs(parser)
    parser.set_defaults(run=run_batch)


def run_batch(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput."""
    _check_rounds(args)
    _check_outputs(args)
    for flag in ("prompts", "shared", "own", "reply"):
        if getattr(args, flag) < 1:
            raise BadInput(f"--{flag} must be at least 1, got {getattr(args, flag)}")
    if args.shape is not None:
        _check_shape(args.shape)
    model = None if args.shape else args.model or BUILT_IN
    if model is not None:
        source_of(model)  # raises where there is no built-in model

    from keepwarm.bench import batch

    plan = batch.Plan(
        model, args.shape, args.prompts, args.shared, args.own, args.reply, args.rounds
    )
    report = _measured(batch.measure, plan)
    _show(lambda found: [batch.table(found)], report, args)
    return 0


def _add_trace(scenarios: Any) -> None:
    parser = scenarios.add_parser(
        "trace",
        help="what the cache saves on recorded workloads",
        description="Replay recorded workloads through the cache, with sizes instead of states.",
        epilog=_TRACE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", type=Path, metavar="PATH", help="a trace, or a folder of them")
    parser.add_argument(
        "--model", default="qwen3.5-35b-a3b", metavar="M",
        help="the model whose sizes count: qwen3.5-35b-a3b or nemotron-h-30b (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--budgets",
        default="4,8,16,32,64,128",
        metavar="GB,GB",
        help="gigabytes that the cache may hold (default: %(default)s)",
    )
    parser.add_argument(
        "--policies", default="worth,lru,fifo,type,marconi,mlx-lm", metavar="P,P",
        help="policies to compare, also marconi:2 (efficiency counts twice) and oracle (knows the"
        " future) (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--users", type=int, default=8, metavar="N", help="users at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--sessions", type=int, metavar="N", help="only the first N of a trace (default: all)"
    )
    parser.add_argument(
        "--skip", type=int, default=0, metavar="N", help="leave out the first N requests"
    )
    parser.add_argument(
        "--requests", type=int, default=500, metavar="N",
        help="only so many requests of a trace; all of them take hours (default: %(default)s)",
    )  # fmt: skip
    _add_outputs(parser)
    parser.set_defaults(run=run_trace)


def run_trace(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput."""
    if min(args.users, args.requests, 1 if args.sessions is None else args.sessions) < 1:
        raise BadInput("--users, --sessions and --requests must be at least 1")
    if args.skip < 0:
        raise BadInput(f"--skip cannot be negative, got {args.skip}")
    _check_outputs(args)
    budgets_bytes = _budgets(args.budgets)

    from keepwarm.bench.trace import scenario, tables
    from keepwarm.bench.trace.policies import checked_policies
    from keepwarm.bench.trace.read import trace_files
    from keepwarm.bench.trace.sizes import sizes_named

    plan = scenario.Plan(
        trace_files(args.path), sizes_named(args.model), budgets_bytes,
        checked_policies(args.policies.split(",")), args.users, args.sessions,
        args.requests, args.skip,
    )  # fmt: skip
    with _bar() as progress:
        task = progress.add_task("", total=None)

        def on_progress(words: str, done: int, total: int) -> None:
            progress.update(task, description=words, completed=done, total=total)

        report = scenario.measure(plan, on_progress)
    _show(tables.tables, report, args)
    return 0


def _budgets(text: str) -> list[int]:
    try:
        found = list(dict.fromkeys(int(float(part) * 10**9) for part in text.split(",")))
    except (ValueError, OverflowError) as error:
        raise BadInput(
            f"--budgets: {text!r} is not a list of gigabytes; write it like 4,8,16"
        ) from error
    if min(found) < 1:
        raise BadInput(f"--budgets must be above 0, not {text}")
    return found


def _bar() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _measured(measure: Callable[[Any, Callable[[str], None]], Report], plan: Any) -> Report:
    with _bar() as progress:
        task = progress.add_task("", total=plan.num_measurements)

        def on_progress(words: str) -> None:
            progress.update(task, description=words, advance=0 if words == "loading" else 1)

        return measure(plan, on_progress)


def _show(
    tables: Callable[[Report], Sequence[Table]], report: Report, args: argparse.Namespace
) -> None:
    from rich.console import Console

    report.command = _command(args)
    for table in tables(report):
        Console().print(table)
    if args.json is not None:
        report.write(args.json)
    if args.plot is not None:
        from keepwarm.bench import plot

        plot.draw(report, args.plot)


def _command(args: argparse.Namespace) -> str:
    """What was asked for, less where to put it and where a trace lies."""
    words = list(args.argv)
    for flag in ("--json", "--plot"):
        words = [word for word in words if not word.startswith(f"{flag}=")]
        if flag in words:
            at = words.index(flag)
            del words[at : at + 2]
    if path := getattr(args, "path", None):
        words = [path.name if word == str(path) else word for word in words]
    return shlex.join(["keepwarm", *words])


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInput(
            f"--lengths: {text!r} is not a list of numbers; write it like 512,2048"
        ) from error
    if min(lengths) < 2:
        raise BadInput(f"--lengths must be at least 2, not {min(lengths)}")
    return lengths


def _check_shape(name: str) -> None:
    from keepwarm.bench.shapes import SHAPES

    if name not in SHAPES:
        raise BadInput(f"--shape: there is no shape {name!r}; choose one of {', '.join(SHAPES)}")
