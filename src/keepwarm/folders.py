"""The user's own folder for what keepwarm can make again. No mlx; any thread."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """In the folder that this user's system has for caches; it may not be there yet."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "keepwarm"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "keepwarm"
