"""What the disk tier has done and what it holds, as plain data. Any thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Phase(StrEnum):
    """Where the tier is in its life."""

    OPENING = "opening"  # the model is being hashed, the folder looked through
    ON = "on"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class DiskStats:
    """A reading. `events` has one entry for each kind of event seen so far."""

    phase: Phase
    off_because: str | None
    folder: str
    num_files: int
    nbytes: int
    read_bytes: int
    written_bytes: int
    events: dict[str, int] = field(default_factory=dict)
