"""What a model takes of memory, told from its config.json before any weight is read.

mlx-lm's own class of the model is made with weights that are never computed, and reads a few tokens
that are never computed either: arrays know their shapes and types before they hold anything. So
this holds for every kind of layer. Some 30 ms a model; on any thread, as long as it is one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_config

from keepwarm.cache.budget import SHARE
from keepwarm.engine.limits import context_len_of
from keepwarm.engine.memory import Footprint
from keepwarm.errors import BadInput, CacheFault
from keepwarm.model.loader import cast, model_classes, wanted_dtype
from keepwarm.state.registry import Layout

_DTYPES = {"BF16": mx.bfloat16, "F16": mx.float16, "F32": mx.float32}
_NUM_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Fit:
    """What one conversation with a model takes."""

    footprint: Footprint
    context_len: int | None  # what the model was made for
    layers: str  # such as "8 rows, 24 snapshot"
    widening: int = 1  # how much larger the weights are in memory than in their files

    def longest(self, weights_bytes: int, memory_bytes: int) -> int:
        """Tokens of the longest conversation that fits in `memory_bytes` together with the weights
        and is kept in a cache of the usual size too; 0 where none does."""
        kept_bytes = int(SHARE * (memory_bytes - self.widening * weights_bytes))
        fits, too_long = 0, (self.context_len or 1 << 22) + 1
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if self.footprint.at(middle) <= kept_bytes:
                fits = middle
            else:
                too_long = middle
        return fits


def fit_of(folder: Path) -> Fit:
    """Raises BadInput where mlx-lm cannot make this model."""
    model, config = _empty_model(folder)
    try:
        widened = None if "quantization" in config else wanted_dtype(model, "auto")
        if widened is not None:
            cast(model, widened)
        caches = make_prompt_cache(model)
        model(mx.zeros((1, _NUM_TOKENS), dtype=mx.int32), cache=caches)
    except Exception as error:
        raise BadInput(f"mlx-lm {version('mlx-lm')} cannot run it: {_first_line(error)}") from error
    try:
        layers = Layout.of(caches).summary()
    except CacheFault as fault:
        layers = f"cannot be cached: {fault}"
    return Fit(Footprint.of(caches), context_len_of(model), layers, 1 if widened is None else 2)


def _empty_model(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The model without its weights, in the type that they are saved in; and its config."""
    try:
        config = load_config(folder)
        model_class, args_class = model_classes(config)
        model = model_class(args_class.from_dict(config))
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"config.json: {type(error).__name__}: {_first_line(error)}") from error
    cast(model, saved_dtype(folder))
    return model, config


def saved_dtype(folder: Path) -> mx.Dtype:
    """What most of the numbers are saved as that are not quantized: layers hand on what they
    compute in it, and the cache stores that. Raises BadInput for a file that is damaged."""
    for file in sorted(folder.glob("model*.safetensors")):
        counts: dict[str, int] = {}
        for tensor in _header(file).values():
            kind = tensor.get("dtype")
            if kind in _DTYPES:
                counts[kind] = counts.get(kind, 0) + 1
        if counts:
            return _DTYPES[max(counts, key=lambda kind: counts[kind])]
    return mx.bfloat16


def _header(file: Path) -> dict[str, Any]:
    """What a safetensors file says of its tensors: eight bytes of length, then JSON."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if length > file.stat().st_size:
                raise ValueError("it is cut off")
            found: dict[str, Any] = json.loads(opened.read(length))
    except (OSError, ValueError) as error:
        raise BadInput(f"{file.name} is damaged: {error}") from error
    return {name: tensor for name, tensor in found.items() if isinstance(tensor, dict)}


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
