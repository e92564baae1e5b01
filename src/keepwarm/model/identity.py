"""Which model computed a state. Cheap enough to be asked for every prompt: nothing is read.

What is seen: another model object, and parameters that were replaced (`model.update`,
`load_weights`, a step of an optimizer, layers that became LoRA layers). What is not: an array that
was written in place (`weight += 1`, `weight[0] = 1`), and settings that are no arrays, such as a
LoRA layer's scale. A small parameter that was replaced by an equal one is the same: gemma3n's
layers write their own coefficients anew in every pass.
"""

from __future__ import annotations

import weakref
from typing import Any

import mlx.core as mx

# Parameters up to this size are compared by value where the array is another one.
_SMALL_BYTES = 4 << 10


class Weights:
    """The parameters of a model as they are now: the very array objects, not their values.

    Large ones are held weakly, so that weights that were replaced can be freed. About 0.3 ms for a
    thousand arrays, whatever their size.
    """

    __slots__ = ("_arrays", "_small")

    def __init__(self, model: Any) -> None:
        arrays = _parameters(model)
        self._arrays = [weakref.ref(array) for array in arrays]
        self._small = [array if array.nbytes <= _SMALL_BYTES else None for array in arrays]

    def are_in(self, model: Any) -> bool:
        """Whether the model still has these parameters, and no others. Changes nothing."""
        found = _parameters(model)
        if len(found) != len(self._arrays):
            return False
        others = [
            (small, array)
            for known, small, array in zip(self._arrays, self._small, found)
            if known() is not array
        ]
        return all(small is not None and small.shape == new.shape for small, new in others) and (
            _all_equal(others)
        )


def _all_equal(pairs: list[tuple[Any, mx.array]]) -> bool:
    """In one evaluation. As float32: a model may widen a parameter when it first uses it."""
    if not pairs:
        return True
    same = [mx.array_equal(a.astype(mx.float32), b.astype(mx.float32)) for a, b in pairs]
    return bool(mx.all(mx.stack(same)).item())


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
