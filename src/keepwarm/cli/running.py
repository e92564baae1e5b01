"""An engine for a command that lasts as long as its work: loaded with a bar, stopped in the end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keepwarm.config import Config

if TYPE_CHECKING:
    from keepwarm.engine.engine import Engine


@contextmanager
def running_engine(config: Config) -> Iterator[Engine]:
    """The engine with its model loaded; stopped in the end."""
    from rich.console import Console

    with Console(stderr=True).status("starting"):  # the imports take seconds
        from keepwarm.cli.engine import make_engine
        from keepwarm.cli.progress import loading_bar
        from keepwarm.model.hub import Transfer

        transfer = Transfer()
        engine = make_engine(config, transfer=transfer)
    engine.start()
    try:
        with loading_bar(config.model, transfer) as update:
            while not engine.wait_ready(0.1):
                update()
    except KeyboardInterrupt:
        # Reading weights cannot be told to stop, and nothing is to be saved.
        transfer.abandon()
        os._exit(128 + signal.SIGINT)
    try:
        yield engine
    finally:
        engine.stop()
