"""`keepwarm models`: what is on this disk, whether it can be served, and how long a conversation
it has room for here."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from keepwarm.cli.amounts import amount, tokens
from keepwarm.errors import BadInput
from keepwarm.model.names import BUILT_IN, built_in_folder
from keepwarm.model.places import Local, local_models, weights_bytes_in

if TYPE_CHECKING:
    from keepwarm.engine.fit import Fit

_EXAMPLES = """\
keepwarm looks in the Hugging Face cache and in the folders of LM Studio, oMLX, exo, Swama, Ollama,
llama.cpp and apps made with MLX's Swift packages. It serves MLX weights (safetensors), not GGUF.

CONTEXT is the longest conversation, in tokens, that fits in this machine's memory beside the weights
while the cache keeps it too. "40K of 256K": memory ends it before the model does. A longer one may
still run, but parts of it will not be kept for the next turn.

examples:
  keepwarm models
  keepwarm models --json
  keepwarm serve Qwen3-0.6B-4bit      the publisher's name may be left out
"""


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "models",
        usage="keepwarm models [--json]",
        help="list the models on this disk",
        description="List the models on this disk that can be served, and why others cannot.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with sizes in bytes")
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Listed:
    """A model on this disk and what is known of it; a reason where it cannot be served."""

    model: Local
    fit: Fit | None
    fits_len: int  # tokens
    reason: str | None


def run(args: argparse.Namespace) -> int:
    """Returns the exit status."""
    from rich.console import Console

    with Console(stderr=True).status("looking"):  # mlx takes a second to import
        from keepwarm.machine import free_bytes

        memory_bytes = free_bytes()
        listed = [_listed(model, memory_bytes) for model in [*_built_in(), *local_models()]]
    if args.json:
        print(json.dumps(_as_json(listed, memory_bytes), indent=2))
    else:
        _show(listed, memory_bytes)
    return 0


def _built_in() -> list[Local]:
    try:
        folder = built_in_folder()
    except BadInput:
        return []
    return [Local(BUILT_IN, "built in", folder, weights_bytes_in(folder))]


def _listed(model: Local, memory_bytes: int) -> Listed:
    from keepwarm.engine.fit import fit_of

    if model.reason is not None:
        return Listed(model, None, 0, model.reason)
    try:
        fit = fit_of(model.folder)
    except BadInput as error:
        return Listed(model, None, 0, str(error))
    return Listed(model, fit, fit.longest(model.weights_bytes, memory_bytes), None)


def _as_json(listed: Sequence[Listed], memory_bytes: int) -> dict[str, Any]:
    return {"memory_bytes": memory_bytes, "models": [_row(found) for found in listed]}


def _row(found: Listed) -> dict[str, Any]:
    model, fit = found.model, found.fit
    return {
        "name": model.name,
        "place": model.place,
        "folder": str(model.folder),
        "weights_bytes": model.weights_bytes,
        "is_usable": found.reason is None,
        "reason": found.reason,
        "context_len": fit.context_len if fit is not None else None,
        "fits_len": found.fits_len if fit is not None else None,
        "token_bytes": fit.footprint.token_bytes if fit is not None else None,
        "layers": fit.layers if fit is not None else None,
    }


def _show(listed: Sequence[Listed], memory_bytes: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.width = max(console.width, 80)  # of a pipe nobody knows
    usable = [found for found in listed if found.reason is None]
    others = [found for found in listed if found.reason is not None]
    table = Table(box=box.SIMPLE, pad_edge=False, header_style="bold")
    table.add_column("MODEL", overflow="fold")
    table.add_column("SIZE", justify="right", no_wrap=True)
    table.add_column("CONTEXT", justify="right", no_wrap=True)
    table.add_column("FOUND IN", no_wrap=True)
    for found in usable:
        model = found.model
        table.add_row(model.name, amount(model.weights_bytes), _context(found), model.place)
    console.print(table)
    if others:
        table = Table(box=box.SIMPLE, pad_edge=False, header_style="bold")
        table.add_column("CANNOT BE SERVED", overflow="fold")
        table.add_column("SIZE", justify="right", no_wrap=True)
        table.add_column("BECAUSE", overflow="fold")
        for found in others:
            size = amount(found.model.weights_bytes)
            table.add_row(found.model.name, size, found.reason, style="dim")
        console.print(table)
    print(f"Memory for weights, cache and running requests: {amount(memory_bytes)}.")
    print(_advice(usable))


def _context(found: Listed) -> str:
    fit = found.fit
    assert fit is not None
    if not found.fits_len:
        return "too large"
    if fit.context_len is None or found.fits_len < fit.context_len:
        whole = f" of {tokens(fit.context_len)}" if fit.context_len is not None else ""
        return tokens(found.fits_len) + whole
    return tokens(found.fits_len)


def _advice(usable: Sequence[Listed]) -> str:
    named = [found.model.name for found in usable if found.model.name != BUILT_IN]
    if named:
        return f"Serve one: keepwarm serve {named[0]}"
    return "Get one: keepwarm serve mlx-community/Qwen3-0.6B-4bit downloads it first."
