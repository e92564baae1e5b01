"""What keepwarm computes in mlx-lm's and MLX's place where there is no Metal, and how that is
undone.

mlx-lm has kernels for Metal and loops over tokens elsewhere; on a CPU, MLX computes some operations
number by number. REPLACEMENTS names each such function and ours. Off with `--kernels mlx-lm`
(`KEEPWARM_KERNELS=mlx-lm`). One choice for the whole process: what a running engine keeps was
computed with it. `uninstall()` puts all back. Any thread.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from operator import attrgetter
from threading import RLock
from typing import Any

import mlx.core as mx

from keepwarm.errors import BadInput
from keepwarm.model.names import KERNELS

ENV = "KEEPWARM_KERNELS"
log = logging.getLogger(__name__)


class Where(StrEnum):
    """On which machines a function is replaced."""

    NO_METAL = "CPU and CUDA"
    CPU = "CPU"
    CUDA = "CUDA"


@dataclass(frozen=True, slots=True)
class Replacement:
    """A function and the one that takes its place. Both take and give the same."""

    module: str
    name: str  # in it: function, or Class.method
    ours: str  # module:function, below keepwarm.model
    where: Where = Where.NO_METAL

    def home(self) -> tuple[Any, str]:
        """What holds the function, and under which name."""
        found = import_module(self.module)
        *path, name = self.name.split(".")
        return (attrgetter(".".join(path))(found) if path else found), name

    def function(self) -> Any:
        module, _, name = self.ours.partition(":")
        return getattr(import_module(f"keepwarm.model.{module}"), name)

    def is_wanted(self) -> bool:
        here = Where.CPU if mx.default_device() == mx.cpu else Where.CUDA
        return self.where in (Where.NO_METAL, here)

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def _mlx_lm(module: str, name: str, ours: str, where: Where = Where.CPU) -> Replacement:
    """On CUDA only what has been seen to be right and faster there."""
    return Replacement(f"mlx_lm.models.{module}", name, ours, where)


def _mlx(name: str) -> Replacement:
    """What MLX computes number by number on a CPU."""
    return Replacement("mlx.core", name, f"cpu_ops:{name.rpartition('.')[2]}", Where.CPU)


REPLACEMENTS = (
    # qwen3_5, qwen3_next, kimi_linear, kimi_k3, olmo_hybrid, bailing_moe_v3
    _mlx_lm("gated_delta", "gated_delta_ops", "gated_delta:gated_delta", Where.NO_METAL),
    # mamba2, nemotron_h, falcon_h1, granitemoehybrid, plamo2: no loop, but matrices of 256 x 256
    _mlx_lm("ssm", "ssm_attn", "decayed_attention:ssm_attn"),
    _mlx_lm("bailing_moe_linear", "recurrent_gla", "decayed_attention:recurrent_gla"),
    # mamba and falcon_mamba
    _mlx_lm("mamba", "MambaBlock._process_sequence", "selective_scan:mamba_sequence"),
    _mlx_lm("jamba", "JambaMambaMixer.ssm_step", "selective_scan:jamba_step"),
    _mlx_lm("rwkv7", "Rwkv7TimeMixing._wkv7", "rwkv:wkv7"),
    _mlx_lm("recurrent_gemma", "rnn_scan", "linear_recurrence:rnn_scan"),
    # no recurrence: its experts are called token by token
    _mlx_lm("dbrx", "SparseMoeBlock.__call__", "grouped_experts:dbrx_moe"),
    # every model
    _mlx("sigmoid"),
    _mlx("conv1d"),
    _mlx("quantized_matmul"),
    _mlx("fast.scaled_dot_product_attention"),
    # every model with heads of 64 to 256
    Replacement(
        "mlx.core", "fast.scaled_dot_product_attention",
        "attention:scaled_dot_product_attention", Where.CUDA,
    ),
    # every model with a convolution before its recurrence
    Replacement("mlx.core", "conv1d", "short_conv:conv1d", Where.CUDA),
)  # fmt: skip

_lock = RLock()  # engines load their models on threads of their own


@dataclass(slots=True)
class _Process:
    """What this process computes with."""

    kernels: str | None = None  # one of KERNELS, since the first model was prepared
    originals: dict[Replacement, Any] = field(default_factory=dict)
    has_stopped_compiling: bool = False


_process = _Process()


def install(kernels: str | None = None) -> None:
    """Replaces what is to be replaced on this machine, before the first model runs; after that the
    same choice does nothing. `kernels` is one of KERNELS; if None, what runs already, else the
    environment's choice. Mutates the modules of MLX and mlx-lm.

    Raises BadInput, also for a choice other than what runs: that would change the bits of running
    engines below the states they keep.
    """
    with _lock:
        wanted = _meant(kernels or _process.kernels or os.environ.get(ENV) or KERNELS[0])
        if _process.kernels is None:
            if wanted == "keepwarm":
                _replace()
            _process.kernels = wanted
        elif wanted != _process.kernels:
            raise BadInput(
                f"this process computes with the kernels of {_process.kernels} since its first"
                f" model was loaded; for those of {wanted}, start another process"
            )


def kernels_in_use() -> str:
    """Whose functions compute in this process, one of KERNELS."""
    return _process.kernels or "mlx-lm"


def replaced() -> list[str]:
    """The functions that ours have taken the place of."""
    return [str(replacement) for replacement in _process.originals]


def _meant(kernels: str) -> str:
    """Where Metal is, mlx-lm's are the only ones, whatever is asked for."""
    if kernels not in KERNELS:
        raise BadInput(f"kernels are {' or '.join(KERNELS)}, not {kernels!r}")
    return "mlx-lm" if mx.metal.is_available() else kernels


def _replace() -> None:
    found, missing = [], []
    for replacement in filter(Replacement.is_wanted, REPLACEMENTS):
        try:
            ours = replacement.function()  # imported first: it keeps what it falls back to
            home, name = replacement.home()
            found.append((replacement, home, name, getattr(home, name), ours))
        except (ImportError, AttributeError):
            missing.append(str(replacement))
    for replacement, home, name, original, ours in found:
        _process.originals[replacement] = original
        setattr(home, name, ours)
    if missing:
        log.warning(
            "this mlx-lm or MLX does not have %s, so nothing replaces it: computing may be slower",
            ", ".join(missing),
        )
    log.debug("replaced: %s", ", ".join(map(str, _process.originals)))
    if mx.default_device() == mx.cpu and _compiles():
        # Where there is a C++ compiler, mlx starts it for each compiled function: nearly a
        # second each, while the first request waits.
        mx.disable_compile()
        _process.has_stopped_compiling = True


def _compiles() -> bool:
    """Whether MLX compiles functions now; it has no way to ask. Nothing is evaluated."""
    calls: list[None] = []

    def traced(x: mx.array) -> mx.array:
        calls.append(None)
        return x

    compiled, one = mx.compile(traced), mx.array(1)
    compiled(one)
    compiled(one)
    return len(calls) == 1


def uninstall() -> None:
    """Puts all back as it was, also for models that run; `install` may then choose anew. Mutates
    the modules of MLX and mlx-lm."""
    with _lock:
        while _process.originals:
            replacement, original = _process.originals.popitem()
            home, name = replacement.home()
            setattr(home, name, original)
        if _process.has_stopped_compiling:
            mx.enable_compile()
        _process.kernels, _process.has_stopped_compiling = None, False


@contextmanager
def mlx_lms_own() -> Iterator[None]:
    """As released for a while: what ours is compared with."""
    before = _process.kernels
    uninstall()
    try:
        yield
    finally:
        uninstall()
        if before is not None:
            install(before)
