"""Trained weights to the folder that keepwarm ships: `python -m models.sprout.convert WEIGHTS`.

Written the way mlx-lm keeps them (norms with their 1 added, convolutions channels-last), in bf16.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from models.sprout.config import PACKAGE_LIMIT_BYTES, SPROUT, Shape, num_parameters, text_config

FOLDER = Path(__file__).parents[2] / "src" / "keepwarm" / "model" / "sprout"
EXACT = ("A_log", "dt_bias")  # kept in float32
# The gated norm within a DeltaNet layer (`linear_attn.norm`) is stored as it is used.
SHIFTED = ("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")


def converted(weights: dict[str, Any]) -> dict[str, Any]:
    """float32 arrays by transformers' names -> by mlx-lm's names, in mlx-lm's layout."""
    result = {}
    for name, value in weights.items():
        if name == "lm_head.weight":
            continue  # tied
        if name.endswith("conv1d.weight"):
            value = np.moveaxis(value, 2, 1)  # (C, 1, K) -> (C, K, 1)
        elif name.endswith(SHIFTED):
            value = value + 1.0
        result[f"language_model.{name}"] = np.ascontiguousarray(value)
    return result


def config_json(shape: Shape, end_id: int, pad_id: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "eos_token_id": end_id,
        "pad_token_id": pad_id,
        "text_config": {**text_config(shape), "eos_token_id": end_id, "pad_token_id": pad_id},
    }


def read_weights(path: Path) -> dict[str, Any]:
    """All tensors of a safetensors file as float32 arrays. Uses mlx: numpy has no bf16."""
    import mlx.core as mx

    loaded: Any = mx.load(str(path))
    return {name: np.array(value.astype(mx.float32)) for name, value in loaded.items()}


def write_weights(weights: dict[str, Any], path: Path) -> None:
    import mlx.core as mx

    arrays = {
        name: mx.array(value).astype(mx.float32 if name.endswith(EXACT) else mx.bfloat16)
        for name, value in weights.items()
    }
    mx.save_safetensors(str(path), arrays, {"format": "mlx"})


def convert(source: Path, folder: Path, shape: Shape) -> int:
    """Write config.json and model.safetensors into `folder`; returns the folder's bytes."""
    weights = read_weights(source)
    num_found = sum(value.size for value in weights.values())
    if num_found != num_parameters(shape):
        raise ValueError(f"{source} holds {num_found} numbers, not {num_parameters(shape)}")
    vocabulary = {
        t["content"]: t["id"] for t in _read_json(folder / "tokenizer.json")["added_tokens"]
    }
    config = config_json(shape, vocabulary["<|im_end|>"], vocabulary["<|endoftext|>"])
    write_weights(converted(weights), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return sum(path.stat().st_size for path in folder.iterdir())


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights", type=Path, help="weights.safetensors of a training run")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    folder_bytes = convert(args.weights, args.folder, SPROUT)
    sys.stdout.write(f"{args.folder}: {folder_bytes:,} bytes\n")
    if folder_bytes > PACKAGE_LIMIT_BYTES:
        sys.exit(f"more than the {PACKAGE_LIMIT_BYTES:,} bytes that the package allows")


if __name__ == "__main__":
    main()
