"""Building live caches from what is stored, after a proof that it belongs to the prompt."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from keepwarm.cache.blocks import pieces_of
from keepwarm.cache.explain import Match
from keepwarm.cache.space import Space, spans_of
from keepwarm.cache.tree import Checkpoint, Node
from keepwarm.errors import CacheFault
from keepwarm.prompt.boundaries import Prompt


def restored(space: Space, match: Match, reserve: int) -> list[Any]:
    """Evaluated live caches at `match.cached_len`.

    Raises CacheFault when something is missing or belongs elsewhere. Changes nothing stored.
    """
    assert match.node is not None
    layout, path, position = space.layout, match.node.path(), match.cached_len
    prove(match.prompt, path, match.tree_len)
    leaves: list[Any] = [None] * len(layout.states)
    for index, group in enumerate(layout.groups):
        spans = match.end.spans(path, index) if match.end else spans_of(path, index)
        wanted = group.state.needs(position)
        for leaf in group.leaves:
            state = layout.row_state(leaf)
            if spans and leaf not in spans[0].block.arrays:
                leaves[leaf] = state.fresh()  # the model never fills it
                continue
            rows = pieces_of(spans, leaf, wanted)
            leaves[leaf] = state.rebuild(position, rows, reserve)
    for leaf in layout.whole:
        snapshot = _checkpoint(match).snapshots[leaf]
        leaves[leaf] = layout.snapshot_state(leaf).restore(snapshot)
    # Evaluated now: a lazy copy would hold on to blocks that are evicted meanwhile.
    mx.eval([leaves[leaf].state for group in layout.groups for leaf in group.leaves])
    layout.check_position(leaves, position)
    return layout.assemble(leaves)


def prove(prompt: Prompt, path: list[Node], position: int) -> None:
    """Raises CacheFault unless all that a restore takes was stored for these very tokens."""
    blocks = {span.block for node in path for spans in node.spans for span in spans}
    for block in sorted(blocks, key=lambda b: b.origin):
        if block.origin < position and block.digest != prompt.digest(block.origin):
            raise CacheFault(f"rows from {block.origin} on belong to another prompt")
    checkpoint = path[-1].checkpoint
    if checkpoint is not None and path[-1].end == position:
        _prove_checkpoint(prompt, checkpoint, position)


def _prove_checkpoint(prompt: Prompt, checkpoint: Checkpoint, position: int) -> None:
    if (checkpoint.position, checkpoint.digest) != (position, prompt.digest(position)):
        raise CacheFault(f"the checkpoint at {position} belongs to another prompt")


def _checkpoint(match: Match) -> Checkpoint:
    """The one that ends what was matched."""
    assert match.node is not None
    if match.end is not None:
        _prove_checkpoint(match.prompt, match.end.checkpoint, match.cached_len)
        return match.end.checkpoint
    if match.node.checkpoint is None or match.node.end != match.cached_len:
        raise CacheFault(f"there is no checkpoint at {match.cached_len}")
    return match.node.checkpoint
