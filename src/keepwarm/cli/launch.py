"""`keepwarm launch CLIENT`: a coding agent, set up for a server and started."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from keepwarm.cli.flags import add_flags, config_of, given_flags
from keepwarm.config import Config
from keepwarm.errors import BadInput
from keepwarm.launch import claude, codex
from keepwarm.launch.endpoint import Endpoint
from keepwarm.launch.server import Running, Started

CLIENTS: dict[str, Any] = {"claude": claude, "codex": codex}

_EXAMPLES = """\
examples:
  keepwarm launch claude mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit
  keepwarm launch claude                        # with the server that runs already
  keepwarm launch claude --url http://studio:8080 --api-key KEY
  keepwarm launch claude ./my-model -- --continue
  keepwarm launch claude --print                # what to set, for a shell
  keepwarm launch codex mlx-community/gpt-oss-20b-MXFP4-Q8 -- exec "fix the tests"

Arguments after -- go to the client. A server that runs already is used and left running; one that
is started here, with the flags of keepwarm serve, is stopped when the client ends. Nothing of the
client's own configuration is changed.
"""


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "launch",
        usage="keepwarm launch CLIENT [MODEL] [options] [-- ARGUMENTS OF THE CLIENT]",
        help="start a coding agent (claude, codex) with a server of keepwarm",
        description="Start a coding agent that uses a server of keepwarm: the one that runs at --host and"
        " --port, the one at --url, or one that is started for it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "client", choices=[*CLIENTS], help="claude is Claude Code, codex is OpenAI's Codex"
    )
    parser.add_argument("--url", metavar="URL", help="a server that runs, here or elsewhere")
    parser.add_argument(
        "--print", action="store_true", dest="prints", help="show what would be set, start nothing"
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the client's exit status; raises BadInput."""
    config, client = config_of(args), CLIENTS[args.client]
    program = shutil.which(client.COMMAND)
    if program is None and not args.prints:
        raise BadInput(f"{client.COMMAND} is not installed, or not on PATH: {client.INSTALL}")
    with _server(args, config) as server:
        model, context_len = server.model()
        endpoint = Endpoint(server.url, model, context_len, server.api_key)
        client.check(endpoint)
        command = client.command(endpoint, program or client.COMMAND, args.behind)
        if args.prints:
            print(_lines(client.settings(endpoint), command))
            return 0
        before = server.tally()
        status = _run(command, client.environment(endpoint, os.environ))
        print(server.tally().since(before).words(), file=sys.stderr)
        return status


@contextmanager
def _server(args: argparse.Namespace, config: Config) -> Iterator[Running]:
    """The server that is asked, ready. Raises BadInput."""
    key = config.api_keys[0] if config.api_keys else None
    if args.url:
        yield Running(args.url.rstrip("/").removesuffix("/v1"), key)
        return
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    server = Running(f"http://{f'[{host}]' if ':' in host else host}:{config.port}", key)
    if server.is_there:
        _check_same(args, server)
        yield server
        return
    if args.prints:
        raise BadInput(f"no server runs at {server.url}: start one, keepwarm serve MODEL")
    with Started(given_flags(args), server) as started:
        print(f"keepwarm: loading {config.model}; log: {started.log}", file=sys.stderr)
        started.wait_ready()
        yield server


def _check_same(args: argparse.Namespace, server: Running) -> None:
    """Raises BadInput where another model was asked for than the one that is there."""
    name, _ = server.model()
    wanted = args.model
    if wanted is not None and wanted.rstrip("/").rpartition("/")[2] != name.rpartition("/")[2]:
        raise BadInput(
            f"the server at {server.url} has {name}, not {wanted}: stop it, or give --port another"
            " number to start a second one"
        )


def _run(command: Sequence[str], env: dict[str, str]) -> int:
    """The client in this terminal: Ctrl-C is its own business until it ends."""
    # Not ignored, which the client would inherit.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        process = subprocess.Popen(command, env=env)
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _lines(settings: dict[str, str], command: Sequence[str]) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    return "\n".join([*lines, shlex.join(command)])
