"""Which model computed a state. Cheap enough to be asked for every prompt: nothing is read.

What is seen: another model object, and parameters that were replaced (`model.update`,
`load_weights`, a step of an optimizer, layers that became LoRA layers). What is not: an array that
was written in place (`weight += 1`, `weight[0] = 1`), and settings that are no arrays, such as a
LoRA layer's scale.
"""

from __future__ import annotations

import weakref
from typing import Any

import mlx.core as mx


class Weights:
    """The parameters of a model as they are now: the very array objects, not their values.

    They are held weakly, so that weights that were replaced can be freed. About 0.3 ms for a
    thousand arrays, whatever their size.
    """

    __slots__ = ("_arrays",)

    def __init__(self, model: Any) -> None:
        self._arrays = [weakref.ref(array) for array in _parameters(model)]

    def are_in(self, model: Any) -> bool:
        """Whether the model still has these parameters, and no others. Changes nothing."""
        found = _parameters(model)
        if len(found) != len(self._arrays):
            return False
        return all(known() is array for known, array in zip(self._arrays, found))


def _parameters(model: Any) -> list[mx.array]:
    """As `model.parameters()` finds them, without building its tree: an mlx module is a dict, and
    a name with an underscore in front is not a parameter."""
    found: list[mx.array] = []
    rest: list[Any] = [model]
    while rest:
        part = rest.pop()
        if isinstance(part, mx.array):
            found.append(part)
        elif isinstance(part, dict):
            rest.extend(value for name, value in part.items() if name[:1] != "_")
        elif isinstance(part, list | tuple):
            rest.extend(part)
    return found
