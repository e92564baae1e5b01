"""`keepwarm pull NAME`: downloads a model, or what of it is missing or has changed."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from keepwarm.cli.amounts import amount, tokens

if TYPE_CHECKING:
    from keepwarm.model.hub import Offer, Transfer

_EXAMPLES = """\
The model goes into the Hugging Face cache, where other programs find it too; HF_HUB_CACHE names
another folder. When a download is stopped, whole files stay: the same command goes on with the rest.
For a repository that is private or gated, log in once with `hf auth login`.

examples:
  keepwarm pull mlx-community/Qwen3-0.6B-4bit
  keepwarm serve Qwen3-0.6B-4bit
  HF_ENDPOINT=https://my-mirror.example keepwarm pull mlx-community/Qwen3-0.6B-4bit
"""


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "pull",
        usage="keepwarm pull NAME",
        help="download a model",
        description="Download a model from Hugging Face, or what has changed since. NAME is its"
        " repository, such as mlx-community/Qwen3-0.6B-4bit.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="a repository: publisher/model")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput."""
    from rich.console import Console

    name = args.name
    with Console(stderr=True).status(f"asking for {name}"):
        from keepwarm.model import hub
        from keepwarm.model.loader import model_classes

        offer = hub.look_up(name)
        model_classes(offer.config)
    if not offer.missing_bytes:
        print(f"{name} is here already, as {hub.host()} has it.")
    else:
        print(f"{name}: {amount(offer.missing_bytes)} to download from {hub.host()}")
        transfer = hub.Transfer()
        with _stoppable(transfer), transfer_bar(transfer):
            hub.download(offer, transfer)
    print(_next(offer))
    return 0


@contextmanager
def transfer_bar(transfer: Transfer) -> Iterator[None]:
    """A bar on a terminal, moved by a thread of its own."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    more = (TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, *more, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("downloading", total=transfer.total_bytes or None)

        def update() -> None:
            total = transfer.total_bytes or None
            progress.update(task, completed=transfer.done_bytes, total=total)

        with _repeating(update):
            yield
        update()


@contextmanager
def _repeating(act: Callable[[], None]) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.2):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _stoppable(transfer: Transfer) -> Iterator[None]:
    """Ctrl-C ends the process at once: huggingface_hub would wait for its threads."""

    def stop(*_: object) -> None:
        Console(stderr=True).show_cursor()  # the bar has hidden it
        print("\nstopped; the same command goes on with the rest", file=sys.stderr)
        transfer.abandon()
        os._exit(128 + signal.SIGINT)

    from rich.console import Console

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _next(offer: Offer) -> str:
    """How to go on, and how long a conversation this machine has room for."""
    from keepwarm.engine.fit import fit_of
    from keepwarm.errors import BadInput
    from keepwarm.machine import free_bytes
    from keepwarm.model.places import find

    model = find(offer.name)
    if model is None or model.reason is not None:
        return f"It cannot be served: {model.reason if model else 'it is not found'}"
    lines = []
    try:
        fits_len = fit_of(model.folder).longest(model.weights_bytes, free_bytes())
        lines.append(
            f"Room here for a conversation of {tokens(fits_len)} tokens."
            if fits_len
            else f"Its {amount(model.weights_bytes)} of weights do not fit in this machine's memory."
        )
    except BadInput as error:
        lines.append(f"It cannot be served: {error}")
    return "\n".join([*lines, f"Serve it: keepwarm serve {offer.name}"])
