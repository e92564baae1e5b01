"""What a user can say about the disk tier. Plain data, no mlx; any thread."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepwarm.cache.disk.files import Files
from keepwarm.errors import BadInput
from keepwarm.folders import cache_folder


def default_folder() -> Path:
    """In the folder that this user's system has for caches."""
    return cache_folder() / "prompts"


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder for what was read, and how it is used.

    `model` is whose states are kept, where the cache was made with a function of the caller's.
    """

    folder: Path | str
    model: Any = None
    name: str = ""  # what people call the model; nothing depends on it
    idle_s: float = 5.0  # a conversation that rests for so long is written
    min_spared_s: float = 0.5  # of prefill that a file must spare a restart
    max_bytes: int | None = None  # of all models; by default a tenth of what is free there
    max_days: float = 30.0  # what was not used for so long is deleted
    day_bytes: int = 50 * 10**9  # so much is written in a day at most, of all models
    deadline_s: float = 10.0  # a load that takes longer is not waited for
    hang_s: float = 60.0  # a disk that answers later is not asked again
    buffer_bytes: int = 64 << 20  # on their way to the disk at once
    files: Files = field(default_factory=Files)  # the operating system's, unless a test says else

    def __post_init__(self) -> None:
        for name, is_good in (
            ("idle_s", self.idle_s >= 0),
            ("min_spared_s", self.min_spared_s >= 0),
            ("max_bytes", self.max_bytes is None or self.max_bytes >= 0),
            ("max_days", self.max_days > 0),
            ("day_bytes", self.day_bytes >= 0),
            ("deadline_s", self.deadline_s > 0),
            ("hang_s", self.hang_s > 0),
            ("buffer_bytes", self.buffer_bytes > 0),
        ):
            if not is_good:
                raise BadInput(f"{name} of a disk cache cannot be {getattr(self, name)}")

    @property
    def path(self) -> Path:
        return Path(self.folder).expanduser()
