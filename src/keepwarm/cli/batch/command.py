"""`keepwarm batch IN OUT`: its flags and what they make. What takes long to import is imported when
it is needed, so that --help and mistakes are answered at once."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from keepwarm.cli.batch.lines import Answers, read_lines
from keepwarm.cli.choice import chosen
from keepwarm.cli.flags import add_flags, config_of
from keepwarm.cli.running import running_engine
from keepwarm.config import Config
from keepwarm.errors import BadInput

if TYPE_CHECKING:
    from keepwarm.cli.batch.run import Tally
    from keepwarm.engine.engine import Engine

_EXAMPLES = """\
examples:
  keepwarm batch questions.jsonl answers.jsonl
  keepwarm batch questions.jsonl answers.jsonl --model mlx-community/Qwen3-0.6B-4bit --max-tokens 200

Both files are in the format of OpenAI's Batch API. A line of the first is a request:
  {"custom_id": "1", "url": "/v1/chat/completions",
   "body": {"messages": [{"role": "user", "content": "Hello!"}]}}
and any route of keepwarm serve can be named. Answers are written as they come, each with its
custom_id; a request that fails is an error on its own line. The common beginning of prompts is
read once. Stopped with Ctrl-C or killed, the same command goes on: what was answered is not asked
again, what failed is.
"""

_TITLES = {
    "model": "the model",
    "cache": "the prefix cache",
    "engine": "running requests",
    "replies": "replies, unless a request says otherwise",
}


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "batch",
        usage="keepwarm batch IN OUT [options]",
        help="answer a file of requests into a file, in OpenAI's batch format",
        description="Answer a file of requests into a file, in the format of OpenAI's Batch API.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "requests", type=Path, metavar="IN", help="the file of requests, JSON lines"
    )
    parser.add_argument("answers", type=Path, metavar="OUT", help="the file of answers")
    parser.add_argument(
        "--model", help="a folder, or the name of a repository on Hugging Face; without it sprout"
    )
    add_flags(parser, titles=_TITLES, without=("model",))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns 0 when every line was answered, else 1. Raises BadInput."""
    if not args.requests.is_file():
        raise BadInput(f"there is no file {args.requests}")
    if args.answers.exists() and args.answers.samefile(args.requests):
        raise BadInput("the answers need a file of their own: IN and OUT are the same")
    config = replace(chosen(config_of(args)), api_keys=(), host="127.0.0.1")
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    num_lines = sum(1 for _ in read_lines(args.requests))
    answers = Answers(args.answers)
    began = perf_counter()
    try:
        with running_engine(config) as engine:
            tally = _answered(engine, config, args.requests, answers, num_lines)
    finally:
        answers.close()
    print(_summary(tally, perf_counter() - began), file=sys.stderr)
    return 1 if tally.num_bad else 0


def _answered(
    engine: Engine, config: Config, requests: Path, answers: Answers, num_lines: int
) -> Tally:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from keepwarm.cli.batch.run import answer_all
    from keepwarm.server.app import create_app

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console, num_done = Console(stderr=True), len(answers.done)
    if num_done:
        print(f"keepwarm: {num_done} of {num_lines} were answered before", file=sys.stderr)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("answering", total=num_lines - num_done)

        def show(tally: Tally) -> None:
            words = f"{tally.num_bad} failed" if tally.num_bad else "answering"
            progress.update(task, description=words, completed=tally.num_good + tally.num_bad)

        lines = (line for line in read_lines(requests) if line.custom_id not in answers.done)
        return asyncio.run(
            answer_all(
                create_app(engine, config),
                lines,
                answers,
                num_at_once=config.max_running + config.max_queue // 2,
                on_answer=show,
            )
        )


def _summary(tally: Tally, seconds: float) -> str:
    failed = f", {tally.num_bad} failed" if tally.num_bad else ""
    share = 100 * tally.cached_tokens / max(1, tally.prompt_tokens)
    return (
        f"{tally.num_good} answered{failed} in {seconds:.1f} s; {tally.prompt_tokens} prompt tokens,"
        f" {share:.0f}% of them cached"
    )
