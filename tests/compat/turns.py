"""One request after the other, as mlx-lm's server serves them: fetch, read in segments, store at
the end of each, decode, store the reply."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

MODEL = "model"


@dataclass(frozen=True)
class Turn:
    """What came of one request."""

    cached_len: int
    logits: mx.array  # after the last token of the prompt: (vocab,)
    tokens: list[int]  # prompt and reply


def read(model: Any, caches: list[Any], tokens: Sequence[int]) -> mx.array:
    """The logits after the last of `tokens`."""
    logits = model(mx.array(tokens)[None], cache=caches)[0, -1]
    mx.eval(logits, [cache.state for cache in caches])
    return logits


def serve(
    cache: Any, model: Any, prompt: Sequence[int], system_len: int, *, reply_len: int = 6
) -> Turn:
    """Serve one request from `cache`, mlx-lm's or ours, decoding greedily."""
    prompt = list(prompt)
    caches, rest = cache.fetch_nearest_cache(MODEL, prompt)
    position = cached_len = len(prompt) - len(rest)
    caches = caches or make_prompt_cache(model)
    # The last token of a prompt is always read on its own: decoding begins with it.
    for stop, kind in ((system_len, "system"), (len(prompt) - 1, "user")):
        if position < stop:
            read(model, caches, prompt[position:stop])
            position = stop
            # A copy, as the server takes one out of its batch: mlx-lm's class keeps what it gets.
            cache.insert_cache(MODEL, prompt[:stop], copy.deepcopy(caches), cache_type=kind)
    logits = latest = read(model, caches, prompt[position:])
    tokens = prompt
    for _ in range(reply_len):
        tokens = [*tokens, int(mx.argmax(latest).item())]
        latest = read(model, caches, tokens[-1:])
    cache.insert_cache(MODEL, tokens, caches)
    return Turn(cached_len, logits, tokens)


def cold(model: Any, prompt: Sequence[int]) -> mx.array:
    """The logits after `prompt`, read at once with nothing cached."""
    return read(model, make_prompt_cache(model), list(prompt))
