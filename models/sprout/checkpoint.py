"""What a training run writes: weights for conversion, and all that is needed to go on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PART_BYTES = 15 << 20  # pieces that pass through narrow channels
EXACT = ("A_log", "dt_bias")  # few numbers with a wide reach: kept in float32


def weights_to_save(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: (value.float() if name.endswith(EXACT) else value.bfloat16()).cpu().contiguous()
        for name, value in state.items()
    }


def save_weights(state: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights_to_save(state), str(path))


def save_full(state: dict[str, Any], path: Path) -> None:
    """Whole or not at all: a run may be stopped while it writes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    torch.save(state, draft)
    draft.replace(path)


def save_parts(state: dict[str, Any], folder: Path) -> None:
    """The same in pieces; the optimizer's moments in bf16, for they need no more."""
    buffer = io.BytesIO()
    torch.save({**state, "optimizer": _halved(state["optimizer"])}, buffer)
    data = buffer.getbuffer()
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(data), PART_BYTES)):
        (folder / f"full.part{number:02}").write_bytes(data[start : start + PART_BYTES])


def load_full(path: Path) -> dict[str, Any]:
    """From a file, or from a folder of pieces."""
    if path.is_dir():
        parts = sorted(path.glob("full.part*"))
        if not parts:
            raise FileNotFoundError(f"{path}: no full.part* there")
        source: Any = io.BytesIO(b"".join(part.read_bytes() for part in parts))
    else:
        source = path
    state: dict[str, Any] = torch.load(source, map_location="cpu", weights_only=True)
    return state


def _halved(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.bfloat16() if value.is_floating_point() and value.ndim else value
    if isinstance(value, dict):
        return {key: _halved(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_halved(item) for item in value]
    return value
