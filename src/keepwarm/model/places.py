"""Models that are on this disk already, wherever a program has put them. No mlx; any thread."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from keepwarm.errors import BadInput

GGUF = "GGUF; keepwarm serves MLX weights (safetensors)"
HUGGING_FACE = "Hugging Face"
# A publisher's folder and the model's: no program nests them deeper.
_DEPTH = 2
_TOKENIZERS = ("tokenizer*.json", "tokenizer.model", "*.tiktoken", "tiktoken.model", "*vocab*")


@dataclass(frozen=True, slots=True)
class Local:
    """A model's folder and what it is called."""

    name: str
    place: str  # whose folder it lies in
    folder: Path
    weights_bytes: int
    reason: str | None = None  # why it cannot be served, as far as its files tell


def local_models() -> list[Local]:
    """Every model that is found here, one for each name: the first that can be served, else the
    first. Looks at names and sizes of files; reads no weights."""
    found: dict[str, Local] = {}
    for model in _all_models():
        other = found.get(model.name)
        if other is None or (other.reason is not None and model.reason is None):
            found[model.name] = model
    return sorted(found.values(), key=lambda model: model.name.lower())


def find(name: str) -> Local | None:
    """The model of that name, which may leave the publisher out and need not match in case; None
    where there is none. Raises BadInput where the name means several."""
    models, lower = local_models(), name.lower()
    hits = (
        [model for model in models if model.name == name]
        or [model for model in models if model.name.lower() == lower]
        or [model for model in models if _last(model.name).lower() == lower]
    )
    hits = [model for model in hits if model.reason is None] or hits
    if len(hits) > 1:
        names = " or ".join(model.name for model in hits)
        raise BadInput(f"{name!r} may mean {names}; write it in full")
    return hits[0] if hits else None


def nearest(name: str) -> list[str]:
    """Names of models here that can be served and are spelt like `name`, the likeliest first."""
    names = [model.name for model in local_models() if model.reason is None]
    spelt = {_last(full).lower(): full for full in names} | {full.lower(): full for full in names}
    close = get_close_matches(name.lower(), spelt, n=3, cutoff=0.6)
    return list(dict.fromkeys(spelt[spelling] for spelling in close))


def meant(name: str) -> str:
    """A question to be put behind a message; empty where no model here is spelt like that."""
    close = nearest(name)
    return f" Did you mean {' or '.join(close)}?" if close else ""


def why_not(folder: Path) -> str | None:
    """Why what lies in a folder cannot be served; None where its files look whole. Whether mlx-lm
    knows the type of model is not asked."""
    has_weights = any(folder.glob("model*.safetensors"))
    if not has_weights and any(folder.rglob("*.gguf")):
        return GGUF
    if not (folder / "config.json").is_file():
        return "there is no config.json"
    missing = _missing(folder)
    if missing:
        return f"{len(missing)} of its files are missing, such as {missing[0]}"
    if not has_weights:
        return "there are no weights (model*.safetensors)"
    if not any(any(folder.glob(pattern)) for pattern in _TOKENIZERS):
        return "there is no tokenizer (tokenizer.json)"
    return None


def weights_bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _missing(folder: Path) -> list[str]:
    """What the list of its weights names and is not there."""
    index = _json(folder / "model.safetensors.index.json").get("weight_map")
    names = set(index.values()) if isinstance(index, dict) else set()
    return sorted(str(name) for name in names if not (folder / str(name)).is_file())


def _all_models() -> Iterator[Local]:
    yield from _hugging_face()
    for place, root in _roots():
        for folder in _folders_with_weights(root):
            name = "/".join(folder.relative_to(root).parts)
            if place == "exo":
                name = name.replace("--", "/", 1)
            yield _local(name, place, folder)
    yield from _ollama()


def _local(name: str, place: str, folder: Path) -> Local:
    reason = why_not(folder)
    size = weights_bytes_in(folder)
    if reason == GGUF:
        size = sum(file.stat().st_size for file in folder.rglob("*.gguf"))
    return Local(name, place, folder, size, reason)


def _hugging_face() -> Iterator[Local]:
    """The cache of huggingface_hub: one folder for a repository, in it one for each revision."""
    from huggingface_hub import constants

    root = Path(constants.HF_HUB_CACHE)
    for repository in _subfolders(root):
        kind, _, name = repository.name.partition("--")
        if kind != "models":
            continue
        models = [
            _local(name.replace("--", "/"), HUGGING_FACE, snapshot)
            for snapshot in _snapshots(repository)
        ]
        usable = [model for model in models if model.reason is None]
        # What is no language model has neither config nor weights of this kind.
        yield from (usable or [m for m in models if m.weights_bytes or m.reason == GGUF])[:1]


def _snapshots(repository: Path) -> list[Path]:
    """Those of a repository, the one that `main` names first, then the latest. A revision that is
    being downloaded is `main` already."""
    folders = _subfolders(repository / "snapshots")
    main = _text(repository / "refs" / "main").strip()
    return sorted(folders, key=lambda f: (f.name != main, -f.stat().st_mtime))


def _roots() -> Iterator[tuple[str, Path]]:
    """Folders of other programs, with the publisher's name above the model's or without."""
    home = Path.home()
    for folder in _lm_studio(home):
        yield "LM Studio", folder
    yield "oMLX", home / ".omlx" / "models"
    yield "exo", home / ".exo" / "models"
    yield "Swama", Path(os.environ.get("SWAMA_MODELS") or home / ".swama" / "models")
    # Programs that are made with MLX's Swift packages.
    yield "Swift", home / "Documents" / "huggingface" / "models"
    for folder in (home / "Library" / "Caches" / "llama.cpp", home / ".cache" / "llama.cpp"):
        yield "llama.cpp", Path(os.environ.get("LLAMA_CACHE") or folder)


def _lm_studio(home: Path) -> list[Path]:
    """The folder that its settings name, else the one of a new or an old version."""
    pointer = _text(home / ".lmstudio-home-pointer").strip()
    base = Path(pointer) if pointer else home / ".lmstudio"
    chosen = _json(base / "settings.json").get("downloadsFolder")
    folders = [Path(chosen)] if isinstance(chosen, str) and chosen else []
    folders += [base / "models", home / ".cache" / "lm-studio" / "models"]
    return list(dict.fromkeys(folders))


def _folders_with_weights(root: Path, depth: int = _DEPTH) -> Iterator[Path]:
    for folder in _subfolders(root):
        if any(folder.glob("*.safetensors")) or any(folder.glob("*.gguf")):
            yield folder
        elif depth > 1:
            yield from _folders_with_weights(folder, depth - 1)


def _ollama() -> Iterator[Local]:
    """Its files are named by their hashes; lists of them tell what belongs together."""
    root = Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")
    library = root / "manifests" / "registry.ollama.ai"
    for publisher in _subfolders(library):
        for model in _subfolders(publisher):
            for tag in sorted(file for file in model.iterdir() if file.is_file()):
                layers = _json(tag).get("layers") or []
                size = sum(layer.get("size", 0) for layer in layers if isinstance(layer, dict))
                owner = "" if publisher.name == "library" else f"{publisher.name}/"
                yield Local(f"{owner}{model.name}:{tag.name}", "Ollama", root, size, GGUF)


def _subfolders(folder: Path) -> list[Path]:
    """None where the folder is missing or may not be read."""
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(file) or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
