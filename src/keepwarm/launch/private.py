"""Files that a client is started with: keys and instructions, which are no other user's to read or
to change. Any thread."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from keepwarm.folders import cache_folder


def private_file(name: str, text: str) -> Path:
    """A file with this text in the user's own folder, one for each text. It stays, since a printed
    command names it, too."""
    folder = cache_folder() / "launch"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = folder / f"{name}-{digest}.json"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    return path
