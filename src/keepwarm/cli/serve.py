"""`keepwarm serve [MODEL]`: its flags and what they make. What takes long to import is imported
when it is needed, so that --help and mistakes are answered at once."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from typing import Any

from keepwarm.cli.choice import chosen
from keepwarm.cli.flags import add_flags, config_of
from keepwarm.cli.listen import listen
from keepwarm.server.log import JsonLines, TextLines

_EXAMPLES = """\
examples:
  keepwarm serve
  keepwarm serve mlx-community/Qwen3-0.6B-4bit
  keepwarm serve ./my-model --port 9000 --cache-bytes 8GB
  keepwarm serve ./my-model --host 0.0.0.0 --api-key-file keys.txt
  KEEPWARM_CACHE_BYTES=30% keepwarm serve ./my-model --config keepwarm.toml

Every flag can also be set in the environment (KEEPWARM_MAX_QUEUE for --max-queue) or in the file
given with --config (max-queue = 8); flags go first, then the environment, then the file.
"""


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "serve",
        usage="keepwarm serve [MODEL] [options]",
        help="serve a model over HTTP, with OpenAI's and Anthropic's APIs",
        description="Serve a model over HTTP, with OpenAI's and Anthropic's APIs. Without a name that is"
        " sprout, a small built-in model; nothing is downloaded.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to stop. Returns the exit status; raises BadInput."""
    config = chosen(config_of(args))
    if config.disk_cache is None:
        config = replace(config, disk_cache="auto")
    logging.basicConfig(level=config.log_level.upper())
    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonLines() if config.log_json else TextLines())
    for name in ("httpx", "httpx2"):  # a line for each file of a download
        logging.getLogger(name).setLevel(logging.WARNING)
    with listen(config.host, config.port) as listener:
        from keepwarm.cli.engine import make_engine
        from keepwarm.cli.server import Server
        from keepwarm.model.hub import Transfer

        transfer = Transfer()
        engine = make_engine(config, transfer=transfer)
        return Server(engine, config, listener, transfer).serve_until_stopped()
