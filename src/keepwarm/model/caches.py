"""Empty live caches for a model: what mlx-lm makes, with quantized rows where asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mlx.nn.layers.base import Module
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, make_prompt_cache

from keepwarm.errors import BadInput

MakeCaches = Callable[[], list[Any]]


@dataclass(frozen=True, slots=True)
class CacheMaker:
    """Makes the empty caches of `model`; with `kv_bits`, quantized ones."""

    model: Any
    kv_bits: int | None = None
    kv_group_size: int = 64

    def __call__(self) -> list[Any]:
        caches = make_prompt_cache(self.model)
        if self.kv_bits is None:
            return caches  # type: ignore[no-any-return]
        return [_quantized(cache, self.kv_group_size, self.kv_bits) for cache in caches]


def cache_maker(model: Any, kv_bits: int | None = None, kv_group_size: int = 64) -> MakeCaches:
    """A function that makes the model's empty caches.

    With `kv_bits` the rows of full attention are quantized from the first token on. Raises
    BadInput when `model` is neither an mlx-lm model nor a function already.
    """
    if isinstance(model, Module):
        return CacheMaker(model, kv_bits, kv_group_size)
    if not callable(model):
        raise BadInput(f"a model or a function that makes its caches, not {type(model)}")
    return model  # type: ignore[no-any-return]


def _quantized(cache: Any, group_size: int, bits: int) -> Any:
    if type(cache) is KVCache:
        return QuantizedKVCache(group_size=group_size, bits=bits)
    if type(cache) is CacheList:
        return CacheList(*(_quantized(part, group_size, bits) for part in cache.caches))
    return cache
