"""`keepwarm`: finds the command and runs it. What cannot be meant ends in one line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from importlib.util import find_spec

from keepwarm.cli import bench, cache, explain, launch, models, pull, serve
from keepwarm.cli.batch import command as batch
from keepwarm.cli.chat import command as chat
from keepwarm.cli.doctor import command as doctor
from keepwarm.errors import KeepwarmError

_NO_MLX = (
    "keepwarm: MLX is not installed. On Linux choose its build: pip install 'keepwarm[cpu]', or"
    " 'keepwarm[cuda]' for an NVIDIA GPU. On a Mac: pip install mlx"
)


def make_parser() -> argparse.ArgumentParser:
    """All commands with their flags."""
    parser = argparse.ArgumentParser(
        prog="keepwarm",
        description="Serves language models on MLX with a prefix cache: what was read before is not read"
        " again.",
        epilog="`keepwarm COMMAND --help` explains a command. First steps: keepwarm chat",
    )
    parser.add_argument("--version", action="version", version=f"keepwarm {version('keepwarm')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve.add_to(commands)
    chat.add_to(commands)
    batch.add_to(commands)
    models.add_to(commands)
    pull.add_to(commands)
    launch.add_to(commands)
    cache.add_to(commands)
    doctor.add_to(commands)
    explain.add_to(commands)
    bench.add_to(commands)
    for parser_of_command in commands.choices.values():
        parser_of_command.set_defaults(parser=parser_of_command)
    return parser


def _meant(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """The flag that was probably meant."""
    flags = [flag for action in parser._actions for flag in action.option_strings]
    near = get_close_matches(unknown[0].partition("=")[0], flags, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parser = make_parser()
    given = list(sys.argv[1:] if argv is None else argv)
    # What stands behind "--" is for the program that a command starts.
    ours = given[: given.index("--")] if "--" in given else given
    args, unknown = parser.parse_known_args(ours)
    args.argv, args.behind = given, given[len(ours) + 1 :]
    if args.command is None:
        parser.print_help(sys.stderr)
        return 2
    if args.behind and args.command != "launch":
        unknown = ["--", *args.behind]
    if unknown:  # told by the command itself, whose usage helps
        args.parser.error(
            f"unrecognized arguments: {' '.join(unknown)}{_meant(args.parser, unknown)}"
        )
    if find_spec("mlx") is None:
        print(_NO_MLX, file=sys.stderr)
        return 1
    try:
        status: int = args.run(args)
    except ImportError as error:
        if "libmlx" not in str(error):  # mlx is there, but without the part that computes
            raise
        print(_NO_MLX, file=sys.stderr)
        return 1
    except KeepwarmError as error:
        print(f"keepwarm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
