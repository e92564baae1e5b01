"""`keepwarm cache`: what the disk cache holds, whether it holds, and how to be rid of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import strftime, time
from typing import TYPE_CHECKING, Any

from keepwarm.cli.amounts import amount
from keepwarm.config import read_bytes
from keepwarm.errors import BadInput

if TYPE_CHECKING:
    from keepwarm.cache.disk.survey import Deleted, Held

_EXAMPLES = """\
examples:
  keepwarm cache ls
  keepwarm cache show 3f2a            the first letters of a model's ID, as `ls` prints it
  keepwarm cache verify
  keepwarm cache prune --days 7
  keepwarm cache prune --max-bytes 5GB
  keepwarm cache clear

A model that is served keeps its files: stop its server first.
"""


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "cache",
        usage="keepwarm cache ls | show | verify | prune | clear [options]",
        help="show, check or delete prompts kept on disk",
        description="Show, check or delete the prompts that `keepwarm serve` keeps on disk.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    acts = parser.add_subparsers(dest="act", metavar="ACT", required=True)
    _act(acts, "ls", _ls, "list the models whose prompts are kept, with sizes")
    show = _act(acts, "show", _show, "list the prompts of one model: length, size, last use")
    show.add_argument("model", help="the first letters of its ID, or its name")
    _act(
        acts, "verify", _verify, "read every byte and check it; exit status 1 if a file is damaged"
    )
    prune = _act(acts, "prune", _prune, "delete the files that were idle longest")
    prune.add_argument("--days", type=float, help="delete files that were idle for so many days")
    prune.add_argument(
        "--max-bytes", metavar="SIZE", help="delete the files idle longest until no more are left"
    )
    clear = _act(acts, "clear", _clear, "delete everything, or everything of one model")
    clear.add_argument("model", nargs="?", help="the first letters of its ID, or its name")
    clear.add_argument("--yes", action="store_true", help="do not ask first")


def _act(acts: Any, name: str, run: Any, words: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = acts.add_parser(name, help=words, description=words)
    parser.add_argument(
        "--disk-cache", metavar="DIR", help="the folder, where it is not the default one"
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def _root(args: argparse.Namespace) -> Path:
    from keepwarm.cache.disk.settings import default_folder

    return Path(args.disk_cache).expanduser() if args.disk_cache else default_folder()


def _ls(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from keepwarm.cache.disk.survey import models_in

    root = _root(args)
    found = models_in(root)
    if not found:
        print(f"no prompts are kept in {root}")
        return 0
    table = Table("id", "model", "mode", "files", "size", "tokens", "last used", "")
    for held in found:
        table.add_row(
            held.identity[:8], held.name, held.mode, str(held.num_files), amount(held.nbytes),
            f"{held.num_tokens:,}", _when(held.used), "served" if held.is_served else "",
        )  # fmt: skip
    Console().print(table)
    total = sum(held.nbytes for held in found)
    print(f"{amount(total)} in {root}")
    return 0


def _show(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from keepwarm.cache.disk.survey import about_of, prompts_in

    root = _root(args)
    held = _named(root, args.model)
    for key, value in sorted(about_of(root / held.identity).items()):
        print(f"{key:8} {value if len(value) < 90 else value[:87] + '...'}")
    table = Table("tokens", "ends at", "size of the last file", "last used")
    for header, file in prompts_in(root / held.identity):
        table.add_row(f"{header.hi:,}", header.stop, amount(file.nbytes), _when(file.used))
    Console().print(table)
    return 0


def _verify(args: argparse.Namespace) -> int:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from keepwarm.cache.disk.survey import models_in, verify

    root = _root(args)
    total = sum(held.nbytes for held in models_in(root))
    with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), transient=True) as bar:
        task = bar.add_task("", total=total)
        faults = verify(root, lambda nbytes: bar.advance(task, nbytes))
    for path, why in faults:
        print(f"{path}: {why}")
    print(f"{amount(total)} read, {len(faults)} files do not hold" if faults else
          f"{amount(total)} read, every file holds")  # fmt: skip
    return 1 if faults else 0


def _prune(args: argparse.Namespace) -> int:
    from keepwarm.cache.disk.survey import prune

    if args.days is None and args.max_bytes is None:
        raise BadInput("say what may stay: --days 7 or --max-bytes 5GB")
    before = time() - 86400 * args.days if args.days is not None else 0.0
    max_bytes = read_bytes(args.max_bytes) if args.max_bytes is not None else None
    return _told(prune(_root(args), max_bytes=max_bytes, before=before))


def _clear(args: argparse.Namespace) -> int:
    from keepwarm.cache.disk.survey import clear, models_in

    root = _root(args)
    chosen: Sequence[Held] = [_named(root, args.model)] if args.model else models_in(root)
    if not chosen:
        print(f"no prompts are kept in {root}")
        return 0
    nbytes = sum(held.nbytes for held in chosen)
    if not args.yes:
        names = ", ".join(sorted({held.name for held in chosen}))
        print(f"delete {amount(nbytes)} of {names} in {root}? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("nothing was deleted")
            return 1
    return _told(clear(root, {held.identity for held in chosen} if args.model else None))


def _named(root: Path, name: str) -> Held:
    from keepwarm.cache.disk.survey import models_in

    found = [h for h in models_in(root) if h.identity.startswith(name) or h.name == name]
    if len(found) != 1:
        how = "no model" if not found else f"{len(found)} models"
        raise BadInput(f"{how} in {root} with the ID or name {name!r}; see `keepwarm cache ls`")
    return found[0]


def _told(deleted: Deleted) -> int:
    print(f"{deleted.num_files} files deleted, {amount(deleted.nbytes)}")
    if deleted.num_served:
        print(f"{deleted.num_served} models are served now and keep their files")
    return 0


def _when(used: float) -> str:
    from time import localtime

    return strftime("%Y-%m-%d %H:%M", localtime(used))
