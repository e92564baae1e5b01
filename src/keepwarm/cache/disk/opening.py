"""Opening the tier: which folder is this model's, and what is in it. `plan_of` on the thread that
owns the arrays, `opened` on one of the tier's own: weights are hashed and headers read there."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepwarm.cache.disk.format import VERSION
from keepwarm.cache.disk.index import File, Index
from keepwarm.cache.disk.root import Other, Root
from keepwarm.cache.disk.settings import Disk
from keepwarm.cache.disk.spill import full_group
from keepwarm.cache.disk.store import Folder
from keepwarm.errors import CacheFault
from keepwarm.model.fingerprint import Weight, facts_of, hash_weights, weights_of
from keepwarm.state.registry import Layout

if TYPE_CHECKING:
    from keepwarm.cache.store import PrefixCache

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

    facts: dict[str, str]
    weights: list[Weight]
    shape: Shape


@dataclass(slots=True)
class Opened:
    root: Root
    folder: Folder
    salt: bytes
    indexes: dict[str, Index]
    others: list[Other]
    stale: list[str]  # why files of the same weights are not used
    counts: Counter[str] = field(default_factory=Counter)


def plan_of(cache: PrefixCache, model: Any) -> Plan:
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
    return Plan(facts, weights_of(model), shape)


def opened(plan: Plan, disk: Disk) -> Opened:
    """Owns the folder from now on. Raises Taken, or OSError."""
    facts = plan.facts | {"weights": hash_weights(plan.weights)}
    text = json.dumps(facts, sort_keys=True)
    identity = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    own = disk.path / identity
    root = Root(disk.path, own, disk.files, max_bytes=disk.max_bytes, day_bytes=disk.day_bytes)
    folder = Folder(own, identity, disk.files)
    folder.take()
    try:
        salt = root.salt()
        about = folder.path / ABOUT
        if not about.exists():
            about.touch(mode=0o600)
            told = json.dumps({"name": disk.name, **facts}, sort_keys=True)
            about.write_text(told + "\n", encoding="utf-8")
        stale = _stale(disk.path, own, facts)
        indexes, lost = _built(folder.scan(), plan.shape)
        folder.delete([file.name for file in lost])
        folder.counts["orphans"] += len(lost)
        others = root.others()
    except BaseException:
        folder.release()
        raise
    return Opened(root, folder, salt, indexes, others, stale, folder.counts)


def _stale(root: Path, own: Path, facts: dict[str, str]) -> list[str]:
    """What has changed since files of the very same weights were written, one line for each."""
    found = []
    for about in root.glob(f"*/{ABOUT}"):
        try:
            theirs = json.loads(about.read_text(encoding="utf-8"))
            changed = sorted(name for name in facts if theirs.get(name) != facts[name])
        except (OSError, ValueError, AttributeError):
            continue
        is_ours = about.parent.name == own.name or theirs.get("mode") != facts["mode"]
        if theirs.get("weights") == facts["weights"] and not is_ours:
            found.append(f"{about.parent.name[:8]}: other {', '.join(changed)}")
    return found


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


def space_id(salt: bytes, namespace: str) -> str:
    """What a namespace is called in files."""
    return hashlib.blake2b(namespace.encode(), key=salt, digest_size=16).hexdigest()
