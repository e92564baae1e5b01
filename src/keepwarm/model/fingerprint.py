"""What a model is known by, so that states of another one are never taken for its own.

States mean something only to the very weights, settings and code that made them. The facts are
gathered on the thread that owns the arrays; weights are hashed on any other, through views.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models import cache as mlx_lm_cache

from keepwarm.errors import CacheFault
from keepwarm.model import speedups

# Raised whenever a function in `speedups.REPLACEMENTS` begins to give other bits.
KERNELS_EPOCH = 1

_MODELS = "mlx_lm.models"
# Of what MLX tells about a device; the rest, such as its free memory, changes all the time.
_DEVICE = ("architecture", "device_name", "compute_capability_major", "compute_capability_minor")


@dataclass(frozen=True, slots=True)
class Weight:
    """One parameter. The view is of bytes and keeps the array alive."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    view: memoryview


def facts_of(model: Any, *, exact: bool) -> dict[str, str]:
    """All but the weights: class, settings, code, kernels; with `exact` also what decides over the
    last bits. Raises CacheFault for a model that does not say what it was made with."""
    kind = type(model)
    facts = {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "config": _config_of(model),
        "modules": _settings_of(model),
        "code": _code_of(sys.modules[kind.__module__]),
        "kernels": f"{speedups.kernels_in_use()} {KERNELS_EPOCH}",
    }
    if exact:
        info = mx.device_info()
        facts |= {
            "mlx": _version_of("mlx"),
            "device": json.dumps({name: str(info.get(name)) for name in _DEVICE}),
            "machine": f"{platform.machine()} {mx.default_device()}",
            "threads": os.environ.get("OPENBLAS_NUM_THREADS", ""),
            "blas": f"{_version_of('scipy-openblas32')} {os.environ.get('KEEPWARM_BLAS', '')}",
            "keepwarm": _package_code(),
        }
    return facts


def weights_of(model: Any) -> list[Weight]:
    """Views of all parameters, evaluated. The owner's thread lets go of them."""
    flat: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    mx.eval([array for _, array in flat])
    return [
        Weight(name, str(array.dtype), tuple(array.shape), _view(array))
        for name, array in sorted(flat, key=lambda pair: pair[0])
    ]


def hash_weights(weights: Sequence[Weight]) -> str:
    """Any thread."""
    import xxhash

    total = hashlib.blake2b(digest_size=16)
    for weight in weights:
        total.update(f"{weight.name} {weight.dtype} {weight.shape} ".encode())
        total.update(xxhash.xxh3_128(weight.view).digest())
    return total.hexdigest()


def _view(array: mx.array) -> memoryview:
    if not array.nbytes:
        return memoryview(b"")
    view = memoryview(array)  # type: ignore[arg-type]
    if not view.c_contiguous:
        array = mx.contiguous(array)
        mx.eval(array)
        view = memoryview(array)  # type: ignore[arg-type]
    return view.cast("B")


def _config_of(model: Any) -> str:
    for name in ("args", "config"):
        found = getattr(model, name, None)
        if is_dataclass(found) and not isinstance(found, type):
            return json.dumps(asdict(found), sort_keys=True, default=repr)
    raise CacheFault(f"a {type(model).__qualname__} does not say what it was made with")


def _settings_of(model: Any) -> str:
    """The hash of what the modules are, and of their settings that are no arrays: an adapter's scale
    stands nowhere else."""
    total = hashlib.blake2b(digest_size=16)
    for name, module in sorted(model.named_modules(), key=lambda pair: pair[0]):
        kind = type(module)
        plain = {
            key: value
            for key, value in vars(module).items()
            if not key.startswith("_") and isinstance(value, bool | int | float | str)
        }
        words = f"{kind.__module__}.{kind.__qualname__} {json.dumps(plain, sort_keys=True)}"
        total.update(f"{name} {words} ".encode())
    return total.hexdigest()


def _code_of(module: ModuleType) -> str:
    """The hash of the sources that give a state its meaning: the model's own, those of mlx-lm that
    it is made of, and the cache classes."""
    total = hashlib.blake2b(digest_size=16)
    for name, text in sorted({*_sources(module), *_sources(mlx_lm_cache)}):
        total.update(f"{name} {len(text)} {text}".encode())
    return total.hexdigest()


def _sources(module: ModuleType) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    stack = [module]
    while stack:
        at = stack.pop()
        if at.__name__ in seen:
            continue
        seen.add(at.__name__)
        try:
            yield at.__name__, inspect.getsource(at)
        except (OSError, TypeError) as error:
            raise CacheFault(f"the code of {at.__name__} cannot be read") from error
        for value in vars(at).values():
            name = value.__name__ if isinstance(value, ModuleType) else _home_of(value)
            if name.startswith(_MODELS + ".") and name in sys.modules:
                stack.append(sys.modules[name])


def _home_of(value: Any) -> str:
    home = getattr(value, "__module__", None)
    return home if isinstance(home, str) else ""


def _package_code() -> str:
    """Of keepwarm's own functions in place of others."""
    total = hashlib.blake2b(digest_size=16)
    modules = {replacement.ours.partition(":")[0] for replacement in speedups.REPLACEMENTS}
    for name in sorted(modules | {"speedups", "head"}):
        total.update(files("keepwarm.model").joinpath(f"{name}.py").read_bytes())
    return total.hexdigest()


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
