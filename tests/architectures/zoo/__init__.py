"""Every kind of mlx-lm language model, small enough to run in a test on the CPU."""

from . import attention, hybrid, recurrent, sparse, windowed
from .base import VOCAB_SIZE, WINDOW_LEN, Architecture
from .caches import arrays, cache_classes, leaves, put_array

__all__ = [
    "ARCHITECTURES",
    "UNBUILDABLE",
    "VOCAB_SIZE",
    "WINDOW_LEN",
    "Architecture",
    "arrays",
    "cache_classes",
    "leaves",
    "put_array",
]

_ROOMS = (attention, windowed, sparse, recurrent, hybrid)

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture for room in _ROOMS for architecture in room.architectures()
}

# Types with caches of their own that cannot be built small or run on the CPU, and what they raise.
UNBUILDABLE: dict[str, str] = {
    "muse_spark": (
        "builds (KVCache and RotatingKVCache), but its forward is made of Metal kernels alone: "
        "RuntimeError: [metal_kernel] No Metal back-end."
    ),
}
