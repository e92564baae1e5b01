"""`keepwarm bench NAME`: one scenario of many; each adds its own flags. What takes long to import
is imported when it is needed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepwarm.errors import BadInput
from keepwarm.model.names import BUILT_IN, source_of

if TYPE_CHECKING:
    from keepwarm.bench.report import Report

_PREFILL_EXAMPLES = """\
examples:
  keepwarm bench prefill
  keepwarm bench prefill --shape qwen3_5-9b --lengths 2048,20480
  keepwarm bench prefill --model ./my-model --json prefill.json

Each system runs in a process of its own; they take turns. mlx-lm reads with its own generator, its
own loops and its own chunks. keepwarm reads into an empty cache, and stores its checkpoints.
"""


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "bench",
        help="measure, beside mlx-lm",
        description="Measure what keepwarm does on this machine, beside mlx-lm as it is installed.",
    )
    scenarios = parser.add_subparsers(dest="scenario", metavar="NAME", required=True)
    _add_prefill(scenarios)


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
        "--lengths", default="512,2048", metavar="N,N", help="tokens (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="of each (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.set_defaults(run=run_prefill)


def run_prefill(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput."""
    lengths = _lengths(args.lengths)
    if args.rounds < 1:
        raise BadInput("--rounds must be at least 1")
    if args.json is not None and not args.json.absolute().parent.is_dir():
        raise BadInput(f"there is no folder {args.json.parent}")  # not after minutes of measuring
    if args.shape is not None:
        _check_shape(args.shape)

    model = None if args.shape else args.model or BUILT_IN
    if model is not None:
        source_of(model)  # raises where there is no built-in model

    from keepwarm.bench import prefill

    _show(
        prefill.table, _measured(prefill.Plan(model, args.shape, lengths, args.rounds)), args.json
    )
    return 0


def _measured(plan: Any) -> Report:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from keepwarm.bench.prefill import measure

    columns = [BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=plan.num_measurements)

        def on_progress(words: str) -> None:
            progress.update(task, description=words, advance=0 if words == "loading" else 1)

        return measure(plan, on_progress)


def _show(table: Any, report: Report, file: Path | None) -> None:
    from rich.console import Console

    Console().print(table(report))
    if file is not None:
        report.write(file)


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInput(f"--lengths: {text!r} is no list of numbers; write 512,2048") from error
    if min(lengths) < 2:
        raise BadInput("--lengths must be at least 2")
    return lengths


def _check_shape(name: str) -> None:
    from keepwarm.bench.shapes import SHAPES

    if name not in SHAPES:
        raise BadInput(f"there is no shape {name!r}; there are {', '.join(SHAPES)}")
