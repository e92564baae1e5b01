"""What a cache holds, saved to a folder of the caller's and loaded again: the files of the disk tier,
with its checks. The thread that owns the arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepwarm.cache.disk.settings import Disk
from keepwarm.cache.disk.spill import keys_to
from keepwarm.cache.disk.tier import Tier
from keepwarm.cache.space import Space
from keepwarm.cache.tree import Node
from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import AnyPrompt, Prompt, as_prompt

if TYPE_CHECKING:
    from keepwarm.cache.store import PrefixCache

_NO_LIMIT = 1 << 62
_FOR_EVER_DAYS = 36_500.0
_TIMEOUT_S = 3600.0


def save(
    cache: PrefixCache,
    model: Any,
    folder: Path | str,
    prompt: AnyPrompt | None,
    namespace: str | None,
) -> int:
    """Write what is held, or what is held of `prompt`, and give the bytes that lie in the folder
    then. Files that are there already stay. Raises BadInput where the folder cannot be written."""
    with _opened(cache, model, folder) as tier:
        for space, node in _held(cache, prompt, namespace):
            tier.stored(space, node)
            tier.flush(_TIMEOUT_S)  # the tier would leave out what a conversation has passed
        _check(tier, folder)
        return tier.stats().nbytes


def load(
    cache: PrefixCache, model: Any, folder: Path | str, prompt: AnyPrompt | None, namespace: str
) -> int:
    """Read what the folder has, or what it has of `prompt`, and give how many tokens that are. What
    does not fit the budget, and what is damaged, is left out. Raises BadInput for a folder that is
    none."""
    if not Path(folder).expanduser().is_dir():
        raise BadInput(f"there is no folder {folder}")
    if prompt is None and cache.exact:
        raise BadInput("in exact mode files are found by the hashes of chunks: name the prompt")
    with _opened(cache, model, folder) as tier:
        prompts = [as_prompt(prompt)] if prompt is not None else _saved(cache, tier, namespace)
        num_tokens = 0
        for each in prompts:
            match = cache.peek(each, namespace=namespace)
            done = tier.fetch(each, match, _TIMEOUT_S)
            if done is not None and done.position is not None:
                num_tokens += done.position - match.cached_len
        _check(tier, folder)
        return num_tokens


@contextmanager
def _opened(cache: PrefixCache, model: Any, folder: Path | str) -> Iterator[Tier]:
    if cache.disabled_because is not None:
        raise BadInput(f"nothing of this model can be saved: {cache.disabled_because}")
    if model is None:
        raise BadInput("whose states these are is not known: call bind(model) on the cache first")
    disk = Disk(
        folder, idle_s=0.0, min_spared_s=1e-12, max_bytes=_NO_LIMIT, max_days=_FOR_EVER_DAYS,
        day_bytes=_NO_LIMIT, deadline_s=_TIMEOUT_S,
    )  # fmt: skip
    tier = Tier(cache, disk, model)
    try:
        tier.wait_open(_TIMEOUT_S)
        _check(tier, folder)
        yield tier
    finally:
        tier.close(_TIMEOUT_S)


def _check(tier: Tier, folder: Path | str) -> None:
    if tier.off_because is not None:
        raise BadInput(f"the folder {folder} cannot be used: {tier.off_because}")


def _held(
    cache: PrefixCache, prompt: AnyPrompt | None, namespace: str | None
) -> Iterator[tuple[Space, Node]]:
    """All places where a state or an end is held, the first ones first."""
    if prompt is not None:
        space, wanted = cache.space_of(namespace or ""), as_prompt(prompt)
        walk = space.tree.walk(cache.keys_of(wanted)) if space is not None else None
        if space is not None and walk is not None:
            yield from ((space, node) for node in _ends(walk.path) if node.end <= len(wanted))
        return
    for space in cache.spaces:
        if namespace is None or space.name == namespace:
            yield from ((space, node) for node in _ends(list(space.tree.nodes())))


def _ends(nodes: Sequence[Node]) -> list[Node]:
    found = [node for node in nodes if node.checkpoint is not None or not node.children]
    return sorted(found, key=lambda node: node.end)


def _saved(cache: PrefixCache, tier: Tier, namespace: str) -> Iterator[Prompt]:
    """The prompts that files lie there of, each with a token behind it: the last one is always
    left to be read."""
    for node in _ends(tier.nodes(namespace)):
        yield Prompt([*cache.tokens_of(keys_to(node)), 0])
