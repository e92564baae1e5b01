"""Downloads of models by huggingface_hub into its own cache, where other programs find them too.
Any thread; one thread downloads and others may read how far it is."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    DryRunError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from tqdm.std import tqdm

from keepwarm.errors import BadInput
from keepwarm.model.places import GGUF, meant

log = logging.getLogger(__name__)

# Kept free on the disk: other programs write too.
_SPARE_BYTES = 1 << 30
_UNFINISHED = "*.incomplete"


@dataclass(slots=True)
class Transfer:
    """How far a download is. Written by the thread that downloads."""

    total_bytes: int = 0  # 0 until something is to be downloaded
    is_over: bool = False
    _blobs: Path | None = None
    _before_bytes: int = 0
    _before: frozenset[Path] = frozenset()  # unfinished files of others

    @property
    def is_running(self) -> bool:
        return self._blobs is not None and not self.is_over

    @property
    def done_bytes(self) -> int:
        """Asks the disk, where unfinished files grow; any thread."""
        if self._blobs is None:
            return 0
        return max(0, min(self.total_bytes, _bytes_in(self._blobs) - self._before_bytes))

    def begin(self, blobs: Path, total_bytes: int) -> None:
        self.total_bytes, self._before_bytes = total_bytes, _bytes_in(blobs)
        self._before = frozenset(blobs.glob(_UNFINISHED))
        self._blobs = blobs

    def abandon(self) -> None:
        """Removes what has come of unfinished files, which nobody could go on with: for a process
        that ends at once. Any thread."""
        if self._blobs is not None and not self.is_over:
            for file in set(self._blobs.glob(_UNFINISHED)) - self._before:
                file.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a repository has of a model, and what of it is missing here."""

    name: str
    total_bytes: int
    missing_bytes: int
    config: dict[str, Any] = field(default_factory=dict)


def look_up(name: str) -> Offer:
    """Asks the hub, and downloads nothing but config.json. Raises BadInput where it cannot be
    reached, has no such model, or has it in a form that cannot be served."""
    try:
        about = HfApi().model_info(name)
        _check_files(name, [file.rfilename for file in about.siblings or []])
        config = Path(hf_hub_download(name, "config.json", tqdm_class=_Silent))
        files = snapshot_download(
            name, allow_patterns=list(_patterns()), dry_run=True, tqdm_class=_Silent
        )
        found: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    except Exception as error:
        raise _told(name, error) from error
    missing = sum(file.file_size or 0 for file in files if file.will_download)
    return Offer(name, sum(file.file_size or 0 for file in files), missing, found)


def download(offer: Offer, transfer: Transfer) -> Path:
    """Fetches what is missing; files that are whole stay, even if it is stopped in between.
    Returns the model's folder. Mutates `transfer`; raises BadInput."""
    _check_disk(offer)
    blobs = cache_folder() / f"models--{offer.name.replace('/', '--')}" / "blobs"
    transfer.begin(blobs, offer.missing_bytes)
    log.info("downloading %s: %.1f GB from %s", offer.name, offer.missing_bytes / 1e9, host())
    try:
        folder = snapshot_download(offer.name, allow_patterns=list(_patterns()), tqdm_class=_Silent)
    except Exception as error:
        raise _told(offer.name, error) from error
    finally:
        transfer.is_over = True
    log.info("downloaded %s", offer.name)
    return Path(folder)


def cache_folder() -> Path:
    return Path(constants.HF_HUB_CACHE).expanduser()


def host() -> str:
    """The hub's address without what all have in common."""
    return str(constants.ENDPOINT).removeprefix("https://").removeprefix("http://")


class _Silent(tqdm):  # type: ignore[misc]
    """huggingface_hub's own bars say nothing: ours say it in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def _patterns() -> Sequence[str]:
    """The files that mlx-lm reads, by its own list."""
    from mlx_lm.utils import DEFAULT_ALLOW_PATTERNS

    patterns: Sequence[str] = DEFAULT_ALLOW_PATTERNS
    return patterns


def _check_files(name: str, files: Sequence[str]) -> None:
    if any(Path(file).match("model*.safetensors") for file in files):
        if "config.json" not in files:
            raise BadInput(f"{name} has no config.json, so it is not a language model")
        return
    if any(file.endswith(".gguf") for file in files):
        raise BadInput(f"{name} holds {GGUF}; look for the same model at {host()}/mlx-community")
    raise BadInput(f"{name} has no weights that keepwarm can read (model*.safetensors)")


def _check_disk(offer: Offer) -> None:
    folder = cache_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing).free
    if offer.missing_bytes + _SPARE_BYTES > free_bytes:
        raise BadInput(
            f"{offer.name} needs {offer.missing_bytes / 1e9:.1f} GB more, and {folder} has"
            f" {free_bytes / 1e9:.1f} GB free; make room, or name a folder on another disk with"
            " HF_HUB_CACHE"
        )


def _told(name: str, error: Exception) -> BadInput:
    """What went wrong, for a person."""
    if isinstance(error, BadInput):
        return error
    cause = error.__cause__ if isinstance(error, DryRunError) and error.__cause__ else error
    log.debug("huggingface_hub", exc_info=error)
    if isinstance(cause, HFValidationError):
        return BadInput(f"{name!r} is not the name of a repository: {cause}")
    if isinstance(cause, GatedRepoError):
        return BadInput(
            f"{name} is gated: accept its terms at {constants.ENDPOINT}/{name}, then log in with"
            " `hf auth login`"
        )
    if isinstance(cause, RepositoryNotFoundError):
        return BadInput(
            f"{host()} has no repository {name}, or it is private and needs `hf auth login`."
            f"{meant(name)}"
        )
    if isinstance(cause, OfflineModeIsEnabled):
        return BadInput(
            f"{name} is not on this disk, and HF_HUB_OFFLINE forbids a download.{meant(name)}"
        )
    lines = str(cause).strip().splitlines() or [type(cause).__name__]
    if isinstance(cause, HfHubHTTPError):
        return BadInput(f"{host()} gave an error for {name}: {lines[0]}")
    return BadInput(f"cannot download {name} from {host()}: {lines[0]}.{meant(name)}")


def _bytes_in(blobs: Path) -> int:
    total = 0
    try:
        for file in blobs.iterdir():
            try:
                total += file.stat().st_size
            except OSError:  # moved in between
                continue
    except OSError:
        return 0
    return total
