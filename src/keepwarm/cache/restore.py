"""Building live caches from what is stored, after a proof that it belongs to the prompt."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from keepwarm.cache.blocks import pieces_of
from keepwarm.cache.space import Space, spans_of
from keepwarm.cache.tree import Node
from keepwarm.errors import CacheFault
from keepwarm.prompt.boundaries import Prompt


def restored(space: Space, prompt: Prompt, node: Node, position: int, reserve: int) -> list[Any]:
    """Evaluated live caches at `position`, which lies on the edge of `node`.

    Raises CacheFault when something is missing or belongs elsewhere. Changes nothing stored.
    """
    layout, path = space.layout, node.path()
    prove(prompt, path, position)
    leaves: list[Any] = [None] * len(layout.states)
    for index, group in enumerate(layout.groups):
        spans = spans_of(path, index)
        wanted = group.state.needs(position)
        for leaf in group.leaves:
            state = layout.row_state(leaf)
            if spans and leaf not in spans[0].block.arrays:
                leaves[leaf] = state.fresh()  # the model never fills it
                continue
            rows = pieces_of(spans, leaf, wanted)
            leaves[leaf] = state.rebuild(position, rows, reserve)
    for leaf in layout.whole:
        snapshot = _snapshots_at(node, position)[leaf]
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
    node = path[-1]
    if node.checkpoint is None or node.end != position:
        return
    found = (node.checkpoint.position, node.checkpoint.digest)
    if found != (position, prompt.digest(position)):
        raise CacheFault(f"the checkpoint at {position} belongs to another prompt")


def _snapshots_at(node: Node, position: int) -> Any:
    if node.checkpoint is None or node.end != position:
        raise CacheFault(f"there is no checkpoint at {position}")
    return node.checkpoint.snapshots
