"""What keepwarm computes in mlx-lm's and MLX's place where there is no Metal, and how that is
undone.

mlx-lm has kernels for Metal and loops over tokens elsewhere; on a CPU, MLX computes some operations
number by number. REPLACEMENTS names each such function and ours. Off with `--kernels mlx-lm`
(`KEEPWARM_KERNELS=mlx-lm`). For reading only: `uninstall()` before training in the same process.
On the thread that loads models, before the first of them runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from operator import attrgetter
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
        return self.where is Where.NO_METAL or mx.default_device() == mx.cpu

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def _mlx_lm(module: str, name: str, ours: str) -> Replacement:
    return Replacement(f"mlx_lm.models.{module}", name, ours)


def _mlx(name: str) -> Replacement:
    """What MLX computes number by number on a CPU. Gradients do not pass through ours."""
    return Replacement("mlx.core", name, f"cpu_ops:{name.rpartition('.')[2]}", Where.CPU)


REPLACEMENTS = (
    # qwen3_5, qwen3_next, kimi_linear, kimi_k3, olmo_hybrid, bailing_moe_v3
    _mlx_lm("gated_delta", "gated_delta_ops", "gated_delta:gated_delta"),
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
)

_originals: dict[Replacement, Any] = {}


def install(kernels: str | None = None) -> None:
    """Replaces what is to be replaced on this machine; once more does nothing. `kernels` is one
    of KERNELS, the environment's choice if None. Mutates the modules of MLX and mlx-lm; raises BadInput."""
    kernels = kernels or os.environ.get(ENV) or KERNELS[0]
    if kernels not in KERNELS:
        raise BadInput(f"kernels are {' or '.join(KERNELS)}, not {kernels!r}")
    if kernels != "keepwarm" or mx.metal.is_available():
        uninstall()
        return
    if mx.default_device() == mx.cpu:
        # Where there is a C++ compiler, mlx starts it for each compiled function: nearly a
        # second each, while the first request waits.
        mx.disable_compile()
    for replacement in REPLACEMENTS:
        if replacement not in _originals and replacement.is_wanted():
            ours = replacement.function()  # imported first: it keeps what it falls back to
            home, name = replacement.home()
            _originals[replacement] = getattr(home, name)
            setattr(home, name, ours)
    log.debug("replaced: %s", ", ".join(map(str, _originals)))


def uninstall() -> None:
    """Puts all back as it was released. Mutates the modules of MLX and mlx-lm."""
    while _originals:
        replacement, original = _originals.popitem()
        home, name = replacement.home()
        setattr(home, name, original)


@contextmanager
def mlx_lms_own() -> Iterator[None]:
    """As released for a while: what ours is compared with."""
    was_installed = bool(_originals)
    uninstall()
    try:
        yield
    finally:
        if was_installed:
            install("keepwarm")
