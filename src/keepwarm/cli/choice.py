"""The model that a command is about: its name in full, or at once what is wrong with it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from keepwarm.config import Config
from keepwarm.model.names import full_name, source_of
from keepwarm.model.places import meant


def chosen(config: Config) -> Config:
    """The settings with the name that `keepwarm models` lists the model by. Says so where it must
    be downloaded; raises BadInput."""
    source = source_of(config.model)
    if not Path(source).is_dir():
        near = meant(config.model)
        print(
            f"keepwarm: {config.model} is not on this disk and will be downloaded.{near}",
            file=sys.stderr,
        )
    return replace(config, model=full_name(config.model))
