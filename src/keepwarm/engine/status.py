"""What the engine tells about itself: plain data, made on its thread and read on any."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from keepwarm.cache.disk.stats import DiskStats
from keepwarm.cache.stats import Stats


class Phase(StrEnum):
    """Where the engine is in its life."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"  # no new requests; the running ones may end
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the start."""

    requests: dict[str, int] = field(default_factory=dict)  # ended, by how: stop, length, ...
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefilled_tokens: int = 0  # for requests, idle prefill not included
    generated_tokens: int = 0
    inflight_tokens: int = 0  # of the cached ones: computed by a request running at the time
    preemptions: int = 0
    idle_tokens: int = 0  # what idle prefill read
    idle_s: float = 0.0  # how long it took
    idle_saved_tokens: int = 0  # of those: what a request then found
    cached_by_reason: dict[str, int] = field(default_factory=dict)  # requests, by match reason


@dataclass(frozen=True, slots=True)
class Status:
    """A reading, at most about a second old while the engine runs."""

    phase: Phase = Phase.LOADING
    num_queued: int = 0
    num_prefilling: int = 0
    num_decoding: int = 0
    live_bytes: int = 0  # estimated, of all running sequences
    memory_bytes: int = 0  # for the cache and all running sequences
    context_len: int | None = None
    layers: str = ""  # one line, such as "8 rows, 24 snapshot"
    disabled_because: str | None = None  # why this model cannot be cached
    is_exact: bool = False
    can_batch: bool = True  # whether running sequences decode in one step
    counters: Counters = field(default_factory=Counters)
    cache: Stats | None = None
    disk: DiskStats | None = None
