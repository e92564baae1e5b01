"""Opening the tier: which folder is this model's, and what is in it. `plan_of` on the thread that
owns the arrays, `opened` on one of the tier's own: weights are hashed and headers read there."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepwarm.cache.disk.files import Files
from keepwarm.cache.disk.format import VERSION
from keepwarm.cache.disk.index import File, Index
from keepwarm.cache.disk.settings import Disk
from keepwarm.cache.disk.spill import full_group
from keepwarm.cache.disk.store import Folder
from keepwarm.errors import CacheFault
from keepwarm.model.fingerprint import Weight, facts_of, hash_weights, weights_of
from keepwarm.state.registry import Layout

if TYPE_CHECKING:
    from keepwarm.cache.store import PrefixCache

SALT = "salt"
ABOUT = "about.json"


@dataclass(frozen=True, slots=True)
class Shape:
    """What all trees of one model have in common."""

    width: int
    has_rows: bool
    needs_state: bool

    @classmethod
    def of(cls, layout: Layout, width: int, *, exact: bool) -> Shape:
        group = full_group(layout)
        has_windows = any(group.is_window for group in layout.groups)
        return cls(width, group is not None, exact or bool(layout.whole) or has_windows)

    def index(self) -> Index:
        return Index(self.width, has_rows=self.has_rows, needs_state=self.needs_state)


@dataclass(slots=True)
class Plan:
    """What is known without hashing the weights."""

    root: Path
    facts: dict[str, str]
    weights: list[Weight]
    shape: Shape


@dataclass(slots=True)
class Opened:
    folder: Folder
    salt: bytes
    indexes: dict[str, Index]
    counts: Counter[str] = field(default_factory=Counter)


def plan_of(cache: PrefixCache, disk: Disk, model: Any) -> Plan:
    """Raises CacheFault for a model that cannot be told from others, or whose states no file can
    hold."""
    layout = cache.layout
    if layout is None or model is None:
        raise CacheFault("nothing is known of the model")
    facts = facts_of(model, exact=cache.exact)
    facts |= {
        "layout": json.dumps([str(s) for s in layout.settings]),
        "nesting": str(layout.shapes),
    }
    facts |= {"format": str(VERSION), "mode": "exact" if cache.exact else "default"}
    if cache.exact:
        facts["schedule"] = str(cache.placement)
    shape = Shape.of(layout, cache.key_width, exact=cache.exact)
    return Plan(disk.path, facts, weights_of(model), shape)


def opened(plan: Plan, files: Files) -> Opened:
    """Owns the folder from now on. Raises Taken, or OSError."""
    facts = plan.facts | {"weights": hash_weights(plan.weights)}
    text = json.dumps(facts, sort_keys=True)
    identity = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    plan.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    plan.root.chmod(0o700)
    folder = Folder(plan.root / identity, identity, files)
    folder.take()
    try:
        salt = _salt_of(plan.root)
        about = folder.path / ABOUT
        if not about.exists():
            about.write_text(text + "\n", encoding="utf-8")
        indexes, lost = _built(folder.scan(), plan.shape)
        folder.delete([file.name for file in lost])
        folder.counts["orphans"] += len(lost)
    except BaseException:
        folder.release()
        raise
    return Opened(folder, salt, indexes, folder.counts)


def _built(files: list[File], shape: Shape) -> tuple[dict[str, Index], list[File]]:
    by_space: dict[str, list[File]] = {}
    for file in files:
        by_space.setdefault(file.header.space, []).append(file)
    indexes: dict[str, Index] = {}
    lost: list[File] = []
    for space, own in by_space.items():
        indexes[space], more = Index.build(
            own, shape.width, has_rows=shape.has_rows, needs_state=shape.needs_state
        )
        lost += more
    return indexes, lost


def _salt_of(root: Path) -> bytes:
    """Of this folder, so that names of namespaces cannot be guessed from the names of files."""
    path = root / SALT
    if not path.exists():
        temporary = root / f"{SALT}.tmp.{os.getpid()}"
        temporary.write_bytes(os.urandom(16))
        temporary.chmod(0o600)
        try:
            os.link(temporary, path)  # whoever comes first decides
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    salt = path.read_bytes()
    if len(salt) != 16:
        raise CacheFault(
            f"{path} is damaged; remove the folder's files with `keepwarm cache clear`"
        )
    return salt


def space_id(salt: bytes, namespace: str) -> str:
    """What a namespace is called in files."""
    return hashlib.blake2b(namespace.encode(), key=salt, digest_size=16).hexdigest()
