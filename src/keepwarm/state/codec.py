"""Snapshots as plain data and arrays, and back. The thread that owns the arrays.

The class of what is put together comes from a live leaf of the model at hand, never from a file.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from keepwarm.errors import CacheFault
from keepwarm.state.base import Arrays, Snapshot

# The sources of these are part of what a model is known by; of other classes nobody can tell
# whether they mean the same by their attributes in another process.
_KNOWN = "mlx_lm.models."


def packed(content: Any, attributes: dict[str, Any]) -> tuple[Any, Arrays]:
    """What `content` is made of: JSON, in which `{"array": 3}` stands for the fourth array.

    Raises CacheFault for what is not plain, or held under two names.
    """
    kind = type(content)
    if not kind.__module__.startswith(_KNOWN):
        raise CacheFault(f"a {kind.__module__}.{kind.__qualname__} is not known well enough")
    packer = _Packer()
    plain = {name: packer.pack(value) for name, value in sorted(attributes.items())}
    return {"class": f"{kind.__module__}.{kind.__qualname__}", "attributes": plain}, tuple(
        packer.arrays
    )


class _Packer:
    def __init__(self) -> None:
        self.arrays: list[mx.array] = []
        self._places: dict[int, int] = {}
        self._seen: set[int] = set()

    def pack(self, value: Any) -> Any:
        if isinstance(value, mx.array):
            if id(value) not in self._places:
                self._places[id(value)] = len(self.arrays)
                self.arrays.append(value)
            return {"array": self._places[id(value)]}
        if value is None or type(value) in (bool, int, float, str):
            return {"value": value}
        if type(value) not in (list, tuple, dict):
            raise CacheFault(f"a {type(value).__name__} cannot be written to a file")
        if id(value) in self._seen:
            raise CacheFault("a container that is held under two names cannot be written")
        self._seen.add(id(value))
        if type(value) is dict:
            if not all(type(key) is str for key in value):
                raise CacheFault("only names can be keys in a file")
            return {"dict": {key: self.pack(item) for key, item in value.items()}}
        return {type(value).__name__: [self.pack(item) for item in value]}


def unpacked(plain: Any, arrays: Arrays, blank: Any) -> Snapshot:
    """The snapshot; its content is `blank`, a new object of the right class, filled. Raises
    CacheFault when the file speaks of another class, or of other arrays."""
    kind = type(blank)
    try:
        if plain["class"] != f"{kind.__module__}.{kind.__qualname__}":
            raise CacheFault(f"a {plain['class']} where a {kind.__qualname__} is needed")
        for name, value in plain["attributes"].items():
            object.__setattr__(blank, name, _unpack(value, arrays))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CacheFault(f"a snapshot makes no sense: {error!r}") from error
    return Snapshot(blank, sum(array.nbytes for array in arrays), arrays)


def _unpack(plain: Any, arrays: Arrays) -> Any:
    ((kind, value),) = plain.items()
    if kind == "array":
        return arrays[value]
    if kind == "value":
        return value
    if kind == "dict":
        return {key: _unpack(item, arrays) for key, item in value.items()}
    items = [_unpack(item, arrays) for item in value]
    return {"list": items, "tuple": tuple(items)}[kind]
