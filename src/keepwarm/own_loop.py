"""For programs that run the model themselves: a prompt read by way of the cache, in one call.
The thread that owns the arrays."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from keepwarm.cache.live import Live
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.prefill import Prefill
from keepwarm.prompt.boundaries import AnyPrompt, Prompt, as_prompt


def prefill(
    model: Any, cache: PrefixCache, prompt: AnyPrompt, *, namespace: str = ""
) -> tuple[Live, mx.array]:
    """Read `prompt` from the longest beginning that is stored, and store it for the next one.

    Gives the live caches behind the prompt (`live.caches` go to the model; call `live.advance`
    with every token that it is fed), and the logits (1, vocab) of what comes next. The caches are
    the caller's own. Raises BadInput for the cache of another model. Mutates the cache.
    """
    prompt = as_prompt(prompt)
    cache.bind(model)
    load_from_disk(cache, prompt, namespace=namespace)
    with Prefill(model, cache, prompt, namespace=namespace) as reading:
        for _ in reading.steps():
            pass
        reading.keep_end()
        return reading.live, reading.logits


def load_from_disk(cache: PrefixCache, prompt: Prompt, *, namespace: str) -> None:
    """Wait until what the disk has of `prompt` is in RAM, if there is a disk tier."""
    if cache.disk is not None:
        cache.disk.load_now(prompt, cache.peek(prompt, namespace=namespace))
