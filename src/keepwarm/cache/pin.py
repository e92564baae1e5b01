"""Holding a place in the tree. The thread that owns the tree; no mlx."""

from __future__ import annotations

from types import TracebackType

from keepwarm.cache.tree import Node


class Pin:
    """Holds one place in the tree: it and all before it stay. A context manager."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._position = 0

    def hold(self, node: Node, position: int) -> None:
        """Hold `position`, on the edge of `node`, instead of what was held before. Mutates."""
        node.holds.append(position)
        self.release()
        self._node, self._position = node, position

    def release(self) -> None:
        """Let go. Mutates; may be called again."""
        if self._node is not None and self._position in self._node.holds:
            self._node.holds.remove(self._position)
        self._node = None

    def __enter__(self) -> Pin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.release()
