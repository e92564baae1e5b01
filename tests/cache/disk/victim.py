"""A process that talks to a cache with a disk tier until it is killed, and notes what is safe."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keepwarm.cache.disk.files import Files
from keepwarm.cache.store import PrefixCache
from keepwarm.model import speedups
from keepwarm.prompt.boundaries import Prompt
from tests.cache.disk.folders import Weightless, disk_at, tier_of
from tests.cache.toy import TOYS, UNTHINNED, messages, prefill

NAMES = ("rows", "rows_window", "rows_snapshot", "window_snapshot", "nested", "quantized")
ACTS = ("create", "write", "sync", "close", "rename", "settle", "unlink")


def prompts(seed: int) -> list[Prompt]:
    """Conversations that begin alike, grow and part."""
    rng = random.Random(seed)
    system = [rng.randrange(50) for _ in range(20)]
    found: list[Prompt] = []
    for _ in range(4):
        tokens = [*system, *(rng.randrange(50) for _ in range(10))]
        for _ in range(3):
            tokens = [*tokens, *(rng.randrange(50) for _ in range(rng.randrange(4, 20)))]
            found.append(messages(tokens, 20, len(tokens) - 2))
    return found


def cache_of(folder: Path, name: str, files: Files | None = None, **settings: Any) -> PrefixCache:
    more: dict[str, Any] = {"files": files} if files is not None else {}
    disk = disk_at(folder, model=Weightless(), max_bytes=60_000, **more, **settings)
    return PrefixCache(TOYS[name].make, budget_bytes=1 << 20, placement=UNTHINNED, disk=disk)


class Suicidal(Files):
    """Ends its process before or after the n-th operation."""

    def __init__(self, number: int, *, after: bool) -> None:
        self._left = number
        for name in ACTS:
            setattr(self, name, self._counted(getattr(self, name), after))

    def _counted(self, act: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            self._left -= 1
            if not self._left and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = act(*args)
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return run


def talk(folder: str, name: str, seed: int, number: int, after: bool) -> None:
    """With `number`, to the operation of that number, and no further."""
    speedups.install()  # as the tests have: it is part of what a model is known by
    files = Suicidal(number, after=after) if number else Files()
    log = os.open(Path(folder) / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    cache = cache_of(Path(folder) / "disk", name, files)
    tier = tier_of(cache)
    os.write(log, b"started\n")
    known: set[str] = set()
    for prompt in prompts(seed):
        prefill(cache, TOYS[name], prompt)
        while True:
            tier.step()
            # Noted before it can be deleted, and only once nothing of that is on its way.
            here = {n for index in tier._shelf.indexes.values() for n in index.files}
            lines = [f"gone {n}\n" for n in known - here] + [f"safe {n}\n" for n in here - known]
            known = here
            os.write(log, "".join(lines).encode())
            if tier._writing.is_done:
                break
    os.write(log, b"done\n")
    signal.pause()
