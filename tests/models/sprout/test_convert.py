"""Converted weights mean the same to mlx-lm; the file is as small as the package allows."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model

from models.sprout.config import PACKAGE_LIMIT_BYTES, SPROUT, TINY, num_parameters
from models.sprout.convert import config_json, convert, converted, write_weights

ADDED = [{"id": 4094, "content": "<|endoftext|>"}, {"id": 4095, "content": "<|im_end|>"}]


def test_weights_leave_room_for_the_tokenizer() -> None:
    assert 2 * num_parameters(SPROUT) < PACKAGE_LIMIT_BYTES - 500_000


def test_norms_are_shifted_and_convolutions_turned() -> None:
    source = {
        "model.norm.weight": np.zeros(4, np.float32),
        "model.layers.0.linear_attn.norm.weight": np.ones(4, np.float32),
        "model.layers.0.linear_attn.conv1d.weight": np.zeros((8, 1, 4), np.float32),
        "lm_head.weight": np.zeros((2, 4), np.float32),
    }
    made = converted(source)
    assert "language_model.lm_head.weight" not in made
    assert made["language_model.model.norm.weight"].tolist() == [1.0] * 4
    assert made["language_model.model.layers.0.linear_attn.norm.weight"].tolist() == [1.0] * 4
    assert made["language_model.model.layers.0.linear_attn.conv1d.weight"].shape == (8, 4, 1)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    mx.save_safetensors(str(tmp_path / "weights.safetensors"), {"model.norm.weight": mx.zeros(4)})
    with pytest.raises(ValueError, match="holds 4 numbers"):
        convert(tmp_path / "weights.safetensors", tmp_path, TINY)


def _trained(seed: int):
    torch = pytest.importorskip("torch")
    from models.sprout.net import Sprout, initialize

    model = Sprout(TINY)
    initialize(model, seed)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:  # away from 1, or a missing shift would not show
                weight.add_(torch.randn(weight.shape, generator=rng) * 0.2)
            elif "embed" not in name:
                weight.mul_(2.0)
    return torch, model


def test_logits_in_mlx_lm_equal_those_in_torch(tmp_path: Path) -> None:
    torch, model = _trained(7)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    arrays = {name: mx.array(value) for name, value in converted(weights).items()}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays, {"format": "mlx"})
    (tmp_path / "config.json").write_text(json.dumps(config_json(TINY, 4095, 4094)))
    loaded, _ = load_model(tmp_path)
    ids = np.random.default_rng(8).integers(0, 4096, (1, 90))
    with torch.no_grad():
        want = model.logits(model(torch.from_numpy(ids))).numpy()
    got = np.array(loaded(mx.array(ids)))
    assert np.abs(want - got).max() < 1e-4
    assert want.std() > 0.1


def test_checkpoint_becomes_a_folder_that_mlx_lm_loads(tmp_path: Path) -> None:
    torch, model = _trained(9)
    from models.sprout.checkpoint import save_weights

    save_weights(model.state_dict(), tmp_path / "run" / "weights.safetensors")
    folder = tmp_path / "sprout"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": ADDED}))
    folder_bytes = convert(tmp_path / "run" / "weights.safetensors", folder, TINY)
    assert folder_bytes == sum(path.stat().st_size for path in folder.iterdir())
    loaded, config = load_model(folder)
    assert config["eos_token_id"] == 4095
    ids = np.random.default_rng(8).integers(0, 4096, (1, 60))
    with torch.no_grad():
        want = model.logits(model(torch.from_numpy(ids))).numpy()
    got = np.array(loaded(mx.array(ids)).astype(mx.float32))
    assert np.abs(want - got).mean() < 0.05 * want.std()  # bf16 throughout


def test_rates_of_forgetting_stay_in_float32(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    exact = np.array([1.2345678], np.float32)
    write_weights({"a.A_log": exact, "a.dt_bias": exact, "a.weight": exact}, path)
    loaded = mx.load(str(path))
    assert loaded["a.A_log"].item() == exact[0]
    assert loaded["a.dt_bias"].item() == exact[0]
    assert loaded["a.weight"].dtype == mx.bfloat16
