"""What keepwarm computes in mlx-lm's place where there is no Metal, and how that is undone.

mlx-lm has kernels for Metal and loops over tokens elsewhere. Each entry of REPLACEMENTS names such
a function and ours, which takes and gives the same. Off with `--kernels mlx-lm`
(`KEEPWARM_KERNELS=mlx-lm`). On the thread that loads models, before the first of them runs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Any

import mlx.core as mx

from keepwarm.errors import BadInput
from keepwarm.model.names import KERNELS

ENV = "KEEPWARM_KERNELS"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replacement:
    """A function of mlx-lm and the one that takes its place."""

    module: str  # of mlx-lm, below mlx_lm.models
    name: str  # in it: function, or Class.method
    ours: str  # module:function, below keepwarm.model

    def home(self) -> tuple[Any, str]:
        """What holds the function, and under which name."""
        found = import_module(f"mlx_lm.models.{self.module}")
        *path, name = self.name.split(".")
        return (attrgetter(".".join(path))(found) if path else found), name

    def function(self) -> Any:
        module, _, name = self.ours.partition(":")
        return getattr(import_module(f"keepwarm.model.{module}"), name)


REPLACEMENTS = (
    # qwen3_5, qwen3_next, kimi_linear, kimi_k3, olmo_hybrid, bailing_moe_v3
    Replacement("gated_delta", "gated_delta_ops", "gated_delta:gated_delta"),
    # mamba2, nemotron_h, falcon_h1, granitemoehybrid, plamo2: no loop, but matrices of 256 x 256
    Replacement("ssm", "ssm_attn", "decayed_attention:ssm_attn"),
    Replacement("bailing_moe_linear", "recurrent_gla", "decayed_attention:recurrent_gla"),
    # mamba and falcon_mamba
    Replacement("mamba", "MambaBlock._process_sequence", "selective_scan:mamba_sequence"),
    Replacement("jamba", "JambaMambaMixer.ssm_step", "selective_scan:jamba_step"),
    Replacement("rwkv7", "Rwkv7TimeMixing._wkv7", "rwkv:wkv7"),
    Replacement("recurrent_gemma", "rnn_scan", "linear_recurrence:rnn_scan"),
    # no recurrence: its experts are called token by token
    Replacement("dbrx", "SparseMoeBlock.__call__", "grouped_experts:dbrx_moe"),
)

_originals: dict[Replacement, Any] = {}


def install(kernels: str | None = None) -> None:
    """Replaces what is to be replaced on this machine; once more does nothing. `kernels` is one
    of KERNELS, the environment's choice if None. Mutates mlx-lm's modules; raises BadInput."""
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
        if replacement not in _originals:
            home, name = replacement.home()
            _originals[replacement] = getattr(home, name)
            setattr(home, name, replacement.function())
    log.debug("replaced in mlx-lm: %s", ", ".join(f"{r.module}.{r.name}" for r in _originals))


def uninstall() -> None:
    """Puts mlx-lm's own functions back. Mutates mlx-lm's modules."""
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
