"""What mlx says it holds, for tests that compare it with what is reported."""

from __future__ import annotations

import mlx.core as mx

# The CPU gives what is asked for; on a GPU a buffer may be rounded up to a page.
PAGE_BYTES = 16384


def active_bytes() -> int:
    """Bytes of all live arrays; nothing kept for later counts."""
    mx.clear_cache()
    return mx.get_active_memory()


def is_about(held_bytes: int, reported_bytes: int, num_buffers: int) -> bool:
    """Whether so many buffers can hold that much and report this much."""
    slack = 0 if mx.default_device() == mx.Device(mx.cpu) else num_buffers * PAGE_BYTES
    return reported_bytes <= held_bytes <= reported_bytes + slack
