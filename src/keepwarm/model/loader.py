"""Loads a model and its tokenizer with mlx-lm, and prepares it for this machine. On the thread
that will own the arrays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
from huggingface_hub import try_to_load_from_cache
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.utils import _get_classes
from transformers import PretrainedConfig

from keepwarm.engine.request import Sampling
from keepwarm.errors import BadInput, cause_of
from keepwarm.machine import free_bytes
from keepwarm.model import hub, speedups
from keepwarm.model.defaults import FILE, give_sampling, read_sampling
from keepwarm.model.hub import Transfer
from keepwarm.model.names import BUILT_IN, DTYPES, source_of
from keepwarm.model.places import why_not

log = logging.getLogger(__name__)

Load = Callable[[], tuple[Any, Any]]


def load(
    path_or_hf_repo: str | None = None,
    tokenizer_config: dict[str, Any] | None = None,
    model_config: dict[str, Any] | None = None,
    adapter_path: str | None = None,
    lazy: bool = False,
    return_config: bool = False,
    revision: str | None = None,
    trust_remote_code: bool = False,
    *,
    dtype: str = "auto",
    kernels: str | None = None,
) -> Any:
    """As `mlx_lm.load`: model and tokenizer, and the config where asked for; without a name, the
    built-in model. The model is prepared as the server's is (see `prepared`), and brings the
    sampling of its `generation_config.json` along: an `Engine` and a `Session` use that where
    they are told no other.

    Raises what mlx-lm raises, and BadInput where there is no built-in model.
    """
    name = path_or_hf_repo or BUILT_IN
    tokenizer_config = dict(tokenizer_config or {})
    if name == BUILT_IN:
        # By the type of the model transformers would take Qwen's own way of splitting words.
        tokenizer_config.setdefault("config", PretrainedConfig())
    source = source_of(name) if revision is None else name
    model, *rest = mlx_lm.load(
        source,
        tokenizer_config=tokenizer_config,
        model_config=model_config,
        adapter_path=adapter_path,
        lazy=True,
        return_config=return_config,
        revision=revision,
        trust_remote_code=trust_remote_code,
    )
    model = prepared(model, dtype, kernels)
    give_sampling(model, _sampling_of(source, revision))
    if not lazy:
        mx.eval(model.parameters())
    return (model, *rest)


def _sampling_of(source: str, revision: str | None) -> Sampling | None:
    """Once the model was loaded: a repository's files are here by now."""
    if Path(source).exists():
        return read_sampling(Path(source))
    found = try_to_load_from_cache(source, FILE, revision=revision)
    return read_sampling(Path(found).parent) if isinstance(found, str) else None


def prepared(model: Any, dtype: str = "auto", kernels: str | None = None) -> Any:
    """The model, ready to run fast here: its weights in the type asked for, and mlx-lm's loops
    over tokens replaced (see `speedups`). Mutates.

    `auto` is the type they were saved in, except on a CPU: products of 16-bit numbers are
    computed several times slower there than those of 32 bits (docs/log/cpu.md), so these are widened
    where the memory is there.
    """
    speedups.install(kernels)
    wanted = wanted_dtype(model, dtype)
    if wanted is not None:
        cast(model, wanted)
    return model


def model_loader(
    name: str,
    *,
    adapter_path: str | None = None,
    trust_remote_code: bool = False,
    chat_template: str | None = None,
    dtype: str = "auto",
    kernels: str | None = None,
    transfer: Transfer | None = None,
) -> Load:
    """A function that loads the model `name`: a folder, a repository that is downloaded, or the
    built-in model. How far a download is stands in `transfer`.

    Raises BadInput at once where something named cannot be there; the function it gives raises
    BadInput for what turns out not to be a model.
    """
    _check_folder(name, Path(source_of(name)))
    if adapter_path is not None and not Path(adapter_path).is_dir():
        raise BadInput(f"--adapter-path: there is no folder {adapter_path}")
    tokenizer_config: dict[str, Any] = {}
    if trust_remote_code:
        tokenizer_config["trust_remote_code"] = True
    if chat_template is not None:
        tokenizer_config["chat_template"] = _read_template(Path(chat_template))

    def load_named() -> tuple[Any, Any]:
        if not Path(source_of(name)).is_dir():
            _fetch(name, transfer or Transfer(), runs_code=trust_remote_code)
        try:
            model, tokenizer = load(
                name,
                tokenizer_config=tokenizer_config,
                adapter_path=adapter_path,
                trust_remote_code=trust_remote_code,
                dtype=dtype,
                kernels=kernels,
            )
        except Exception as error:
            raise BadInput(f"cannot load {name}: {_why(error)}") from error
        return model, tokenizer

    return load_named


def wanted_dtype(model: Any, dtype: str) -> mx.Dtype | None:
    """None: as they are."""
    if dtype not in DTYPES:
        raise BadInput(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if dtype != "auto":
        found: mx.Dtype = getattr(mx, dtype)
        return found
    if mx.default_device() != mx.cpu:
        return None
    flat: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    weights = [array for _, array in flat]
    is_quantized = any(array.dtype == mx.uint32 for array in weights)
    narrow = [array for array in weights if array.dtype in (mx.bfloat16, mx.float16)]
    if is_quantized or not narrow:
        return None
    # Of what is free, as much again stays for the cache and the replies.
    wide_bytes = 2 * sum(array.nbytes for array in narrow)
    if 2 * wide_bytes > free_bytes():
        log.info("dtype: as saved, since memory is too small for float32, which is faster on a CPU")
        return None
    log.info("dtype: float32, which is faster on a CPU than 16 bits (--dtype)")
    return mx.float32


def cast(model: Any, wanted: mx.Dtype) -> None:
    """As mlx-lm converts: what the model keeps in its own precision stays so. Mutates."""
    may_cast: Callable[[str], bool] = getattr(model, "cast_predicate", lambda _: True)

    def cast_one(name: str, array: mx.array) -> mx.array:
        is_cast = mx.issubdtype(array.dtype, mx.floating) and may_cast(name)
        return array.astype(wanted) if is_cast else array

    model.update(tree_map_with_path(cast_one, model.parameters()))


def model_classes(config: dict[str, Any]) -> tuple[Any, Any]:
    """mlx-lm's classes of a model and of its settings. Raises BadInput where it knows none."""
    release = f"mlx-lm {version('mlx-lm')}"
    if config.get("model_file") is not None:
        raise BadInput(
            "it needs Python code that comes with it, and only --trust-remote-code runs that"
        )
    if "model_type" not in config:
        raise BadInput("config.json does not say what type of model it is (model_type)")
    try:
        found: tuple[Any, Any] = _get_classes(config)
    except ValueError as error:
        raise BadInput(
            f"{release} does not know models of type {config['model_type']!r}"
        ) from error
    return found


def _fetch(name: str, transfer: Transfer, *, runs_code: bool) -> None:
    """Downloads a model unless it is of a type that cannot be served. Mutates `transfer`."""
    offer = hub.look_up(name)
    if not runs_code:
        try:
            model_classes(offer.config)
        except BadInput as error:
            raise BadInput(f"{name} cannot be served: {error}") from error
    hub.download(offer, transfer)


def _check_folder(name: str, folder: Path) -> None:
    reason = why_not(folder) if folder.is_dir() else None
    if reason is not None:
        raise BadInput(f"{name!r} cannot be served: {reason}")


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadInput(f"--chat-template: cannot read {file}: {cause_of(error)}") from error


def _why(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
