"""What was held or could have been, to tell why it is not there. Holds no arrays."""

from __future__ import annotations

from collections import OrderedDict

from keepwarm.cache.explain import Reason
from keepwarm.cache.placement import Placement
from keepwarm.prompt.boundaries import Prompt

# How many are remembered; of the rest nobody can tell "evicted" from "never seen".
_NUM_GHOSTS = 4096


class Ghosts:
    """Why checkpoints went, or never came: the last ones of which that is known."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._reasons: OrderedDict[tuple[str, bytes], Reason] = OrderedDict()

    def add(self, namespace: str, digest: bytes, reason: Reason) -> None:
        """A checkpoint went, or was not stored. Mutates."""
        self._reasons[(namespace, digest)] = reason
        if len(self._reasons) > _NUM_GHOSTS:
            self._reasons.popitem(last=False)

    def forget(self, namespace: str, digest: bytes) -> None:
        """It is back, or nobody will ask. Mutates."""
        self._reasons.pop((namespace, digest), None)

    def reason(self, prompt: Prompt, namespace: str, deeper_than: int) -> Reason | None:
        """Why the deepest checkpoint of this prompt beyond that position is not there; None when
        nobody knows of one."""
        if not self._reasons:
            return None
        for place in reversed(self._placement.places(prompt)):
            if deeper_than < place < len(prompt):
                found = self._reasons.get((namespace, prompt.digest(place)))
                if found is not None:
                    return found
        return None
