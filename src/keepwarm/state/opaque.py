"""Leaves that are kept whole: recurrent states (`ArraysCache`) and classes nobody has told us of.

A copy is made of everything the object holds. What is not plain data (a lock, a function, a
file) cannot be copied safely, and then the leaf cannot be stored at all.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from keepwarm.errors import CacheFault
from keepwarm.state import codec
from keepwarm.state.base import Arrays, Snapshot, SnapshotState, handle, owned

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, mx.Dtype, np.generic)
# Deep enough for any cache of caches, shallow enough to stop at a cycle.
_MAX_DEPTH = 16


class WholeState(SnapshotState):
    """Any object made of arrays and plain data: attributes, lists, tuples, dicts, sets."""

    def position(self, cache: Any) -> int | None:
        return None

    def measure(self, cache: Any) -> int:
        total = 0

        def count(array: mx.array) -> mx.array:
            nonlocal total
            total += array.nbytes
            return array

        duplicate(cache, count)
        return total

    def snapshot(self, cache: Any) -> Snapshot:
        found: list[mx.array] = []

        def keep(array: mx.array) -> mx.array:
            found.append(owned(array))
            return found[-1]

        content = duplicate(cache, keep)
        arrays: Arrays = tuple(found)
        return Snapshot(content, sum(array.nbytes for array in arrays), arrays)

    def restore(self, snapshot: Snapshot) -> Any:
        return duplicate(snapshot.content, handle)

    def packed(self, snapshot: Snapshot) -> tuple[Any, Arrays]:
        return codec.packed(snapshot.content, _attributes(snapshot.content))

    def unpacked(self, plain: Any, arrays: Arrays, like: Any) -> Snapshot:
        return codec.unpacked(plain, arrays, _blank(like))


def duplicate(
    value: Any,
    copy: Callable[[mx.array], mx.array],
    depth: int = 0,
    twins: dict[int, Any] | None = None,
) -> Any:
    """A copy of `value` that shares no container with it; every array goes through `copy`.

    What `value` holds under two names the copy holds under two names too: a class may write
    through one and read through the other. Raises CacheFault for anything that is not data.
    """
    if isinstance(value, _PLAIN):
        return value
    twins = {} if twins is None else twins
    if id(value) not in twins:
        twins[id(value)] = _duplicated(value, copy, depth, twins)
    return twins[id(value)]


def _duplicated(
    value: Any, copy: Callable[[mx.array], mx.array], depth: int, twins: dict[int, Any]
) -> Any:
    if isinstance(value, mx.array):
        return copy(value)
    if depth >= _MAX_DEPTH:
        raise CacheFault(f"a {type(value).__name__} is nested too deeply to be copied")
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(duplicate(item, copy, depth + 1, twins) for item in value)
    if type(value) is dict:
        return {key: duplicate(item, copy, depth + 1, twins) for key, item in value.items()}
    twin = _blank(value)
    for name, item in _attributes(value).items():
        object.__setattr__(twin, name, duplicate(item, copy, depth + 1, twins))
    return twin


def _blank(value: Any) -> Any:
    """A new object of the same class with no attributes yet.

    Python's own copy protocol tells data from the rest: locks, files, generators and objects
    that hold state outside their attributes refuse it or answer with something special.
    """
    kind = type(value)
    try:
        make, arguments, _, *items = (*value.__reduce_ex__(4), None, None)[:5]
        if make is not copyreg.__newobj__ or any(item is not None for item in items):  # type: ignore[attr-defined]
            raise TypeError("it is copied in a way of its own")
        if isinstance(value, type) or callable(value):
            raise TypeError("it is code, not data")
        return make(*arguments)
    except Exception as error:  # whatever a foreign class may raise there
        name = f"{kind.__module__}.{kind.__qualname__}"
        raise CacheFault(f"a {name} cannot be copied: {error}") from error


def _attributes(value: Any) -> dict[str, Any]:
    found = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = _mangled(slot, base)
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _mangled(name: str, owner: type) -> str:
    """The attribute that a name in the body of a class stands for."""
    if not name.startswith("__") or name.endswith("__"):
        return name
    return f"_{owner.__name__.lstrip('_')}{name}"
