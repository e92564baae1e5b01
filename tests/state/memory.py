"""What mlx says it holds, for tests that compare it with what is reported."""

from __future__ import annotations

import gc

import mlx.core as mx

# mlx gives a new array a free buffer that is up to twice as large, or up to two pages larger.
SPARE_BYTES = 2 * 16384


def active_bytes() -> int:
    """Bytes of all live arrays; nothing counts that is kept for later or only waits to go."""
    gc.collect()
    mx.clear_cache()
    return mx.get_active_memory()


def is_about(held_bytes: int, reported_bytes: int, num_buffers: int) -> bool:
    """Whether so many arrays that report this much can hold that much with no view among them."""
    spare = min(reported_bytes, num_buffers * SPARE_BYTES)
    return reported_bytes <= held_bytes <= reported_bytes + spare
