"""Loads a model and its tokenizer with mlx-lm. On the thread that will own the arrays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx_lm

from keepwarm.errors import BadInput

Load = Callable[[], tuple[Any, Any]]


def model_loader(
    name: str,
    *,
    adapter_path: str | None = None,
    trust_remote_code: bool = False,
    chat_template: str | None = None,
) -> Load:
    """A function that loads the model `name`: a folder, or a repository that is downloaded.

    Raises BadInput at once where something named cannot be there; the function it gives raises
    BadInput for what turns out not to be a model.
    """
    _check_folder(name, "model")
    if adapter_path is not None and not Path(adapter_path).is_dir():
        raise BadInput(f"there is no adapter folder {adapter_path}")
    tokenizer_config: dict[str, Any] = {}
    if trust_remote_code:
        tokenizer_config["trust_remote_code"] = True
    if chat_template is not None:
        tokenizer_config["chat_template"] = _read_template(Path(chat_template))

    def load() -> tuple[Any, Any]:
        try:
            model, tokenizer = mlx_lm.load(
                name,
                tokenizer_config=tokenizer_config,
                adapter_path=adapter_path,
                trust_remote_code=trust_remote_code,
            )
        except Exception as error:
            raise BadInput(f"cannot load {name}: {_first_line(error)}") from error
        return model, tokenizer

    return load


def weights_bytes(name: str) -> int | None:
    """How large the weights of a local model are; None for one that is elsewhere."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return None
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) or None


def _check_folder(name: str, what: str) -> None:
    """A name of a repository is `owner/name` or `name`; anything else can only be a folder."""
    folder = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name
    if not name or (looks_local and not folder.is_dir()):
        raise BadInput(f"there is no {what} folder {name!r}")
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise BadInput(f"there is no config.json in {name!r}, so it is no model")


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot read the chat template: {error}") from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
