"""Flags of commands, made from the settings: one place says what there is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

from keepwarm.config import Config, Setting, read_config, settings, unknown_in

_TITLES = {
    "model": "the model",
    "server": "address and access",
    "cache": "the prefix cache",
    "engine": "running requests",
    "replies": "replies, unless a request says otherwise",
}


def add_flags(
    parser: argparse.ArgumentParser,
    *,
    titles: Mapping[str, str] = _TITLES,
    without: Sequence[str] = (),
) -> None:
    """Adds one flag for each setting of the groups in `titles`, save those `without`. Mutates."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="a TOML file of settings, named like the flags",
    )
    groups = {name: parser.add_argument_group(title) for name, title in titles.items()}
    for found, setting in settings():
        if setting.group in groups and setting.name not in without:
            _add(groups[setting.group], found, setting)


def config_of(args: argparse.Namespace) -> Config:
    """The settings from flags, environment and file. Raises BadInput."""
    given = {setting.name: getattr(args, setting.name, None) for _, setting in settings()}
    config = read_config(given, os.environ, args.config)
    for line in unknown_in(os.environ):
        print(f"keepwarm: {line}", file=sys.stderr)
    return config


def given_flags(args: argparse.Namespace) -> list[str]:
    """The flags that were given, once more: for another command that has the same."""
    flags = ["--config", str(args.config)] if args.config else []
    for _, setting in settings():
        value = getattr(args, setting.name, None)
        if setting.is_positional:
            flags += [value] if value is not None else []
        elif isinstance(value, bool):
            flags.append(f"--{setting.name}" if value else f"--no-{setting.name}")
        elif value is not None:
            values = value if isinstance(value, list) else [value]
            flags += [text for each in values for text in (f"--{setting.name}", str(each))]
    return flags


def _add(group: Any, found: Field[Any], setting: Setting) -> None:
    words = setting.words.replace("%", "%%") + _default_words(found)
    if setting.is_positional:
        group.add_argument(setting.name, nargs="?", metavar=setting.name.upper(), help=words)
        return
    options: dict[str, Any] = {"dest": setting.name, "default": None, "help": words}
    if found.default in (True, False) and isinstance(found.default, bool):
        options["action"] = argparse.BooleanOptionalAction
    elif setting.is_many:
        options |= {"action": "append", "metavar": setting.metavar or "KEY"}
    elif setting.choices is not None:
        options["choices"] = setting.choices
    else:
        options["metavar"] = setting.metavar or _metavar(found)
    group.add_argument(f"--{setting.name}", **options)


def _metavar(found: Field[Any]) -> str:
    return "N" if isinstance(found.default, int | float) or found.default is None else "TEXT"


def _default_words(found: Field[Any]) -> str:
    default = found.default
    if default is MISSING or default in (None, "", ()) or isinstance(default, bool):
        return ""
    return f" (default: {default})".replace("%", "%%")
