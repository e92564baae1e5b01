"""`keepwarm doctor [MODEL]`: its flags, and the order in which it looks."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from keepwarm.cli.choice import chosen
from keepwarm.cli.flags import add_flags, config_of
from keepwarm.config import Config

if TYPE_CHECKING:
    from keepwarm.cli.doctor.findings import Section

_EXAMPLES = """\
It takes the settings of keepwarm serve, and tells what a server with them would find: the machine,
how the model's layers can be restored, what the chat template does, whether the port is free. Then
it tries: a prompt read cold and one read from the cache must give the same logits, and a short chat
shows how much is not read again. That takes a minute at most once the model is loaded.

A line that begins with ! could be better, one with x does not work. Exit status: 0 when nothing is
marked x, 1 when something is, 2 when the model or a setting is wrong.

examples:
  keepwarm doctor
  keepwarm doctor mlx-community/Qwen3-0.6B-4bit
  keepwarm doctor ./my-model --no-test --json
"""
_TITLES = {
    "model": "which model",
    "server": "how it would be served",
    "cache": "how it would be cached",
}


def add_to(commands: Any) -> None:
    """Adds the command. Mutates."""
    parser = commands.add_parser(
        "doctor",
        usage="keepwarm doctor [MODEL] [options]",
        help="check this machine and a model, and try the cache on them",
        description="Check this machine and a model, and try the cache on them. Without a name:"
        " sprout, the small model that is built in.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON, once all is done")
    parser.add_argument("--no-test", action="store_true", help="leave the self-test out")
    add_flags(parser, titles=_TITLES)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput."""
    from rich.console import Console

    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    config = chosen(config_of(args))
    found: list[Section] = []
    with Console(stderr=True).status("looking") as status:
        for section in _sections(config, status, is_tried=not args.no_test):
            found.append(section)
            if not args.json:
                print(section.text(), end="\n\n", flush=True)
    is_good = all(section.is_good for section in found)
    if args.json:
        told = {section.key: section.as_json() for section in found}
        print(json.dumps({"is_good": is_good, "model_name": config.model, **told}, indent=2))
    else:
        print("Everything works." if is_good else "Lines with x need a remedy.")
    return 0 if is_good else 1


def _sections(config: Config, status: Any, *, is_tried: bool) -> Iterator[Section]:
    from keepwarm.cli.doctor.machine import machine_section, server_section
    from keepwarm.cli.doctor.model import model_section, template_section
    from keepwarm.cli.doctor.trial import trial_section
    from keepwarm.model.loader import model_loader
    from keepwarm.model.names import shown_name

    yield machine_section(config)
    yield server_section(config)
    status.update(f"loading {shown_name(config.model)}")
    model, tokenizer = _loaded(config, model_loader)
    yield model_section(shown_name(config.model), model)
    yield template_section(tokenizer, config.template_kwargs())
    if is_tried:
        status.update("trying")
        yield trial_section(model, tokenizer, config.template_kwargs())


def _loaded(config: Config, model_loader: Any) -> tuple[Any, Any]:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    load = model_loader(
        config.model,
        adapter_path=config.adapter_path,
        trust_remote_code=config.trust_remote_code,
        chat_template=config.chat_template,
        dtype=config.dtype,
        kernels=config.kernels,
    )
    model, tokenizer = load()
    is_wrapped = isinstance(tokenizer, TokenizerWrapper)
    return model, tokenizer if is_wrapped else TokenizerWrapper(tokenizer)
