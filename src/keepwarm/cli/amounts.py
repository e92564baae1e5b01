"""Bytes and tokens as people read them. Plain data."""

from __future__ import annotations


def amount(num_bytes: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"


def tokens(count: int) -> str:
    """In units of 1024, as contexts are given: 40960 is 40K."""
    return str(count) if count < 1024 else f"{count // 1024}K"
