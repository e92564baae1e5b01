"""What a config.json tells of memory is what the loaded model then takes."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from keepwarm.cli.engine import make_engine
from keepwarm.config import Config
from keepwarm.engine.fit import Fit, fit_of, saved_dtype
from keepwarm.engine.memory import Footprint, Growth
from keepwarm.errors import BadInput
from keepwarm.model.caches import cache_maker
from tests.architectures.zoo import ARCHITECTURES, Architecture
from tests.architectures.zoo.base import COMMON
from tests.compat.serving import save_small_model


def config_folder(architecture: Architecture, folder: Path, dtype: mx.Dtype) -> Path:
    """A config, and of the weights one number, in the type that all are saved in."""
    settings = {**COMMON, "model_type": architecture.module_name, **architecture.config}
    if architecture.is_nested:
        settings["text_config"] = dict(settings)
    settings["model_type"] = architecture.module_name
    (folder / "config.json").write_text(json.dumps(settings))
    mx.save_safetensors(str(folder / "model.safetensors"), {"norm": mx.ones(1, dtype=dtype)})
    return folder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_config_tells_what_the_caches_of_the_model_take(name: str, tmp_path: Path) -> None:
    architecture = ARCHITECTURES[name]
    fit = fit_of(config_folder(architecture, tmp_path, mx.float32))
    model = architecture.build(mx.float32)
    caches = cache_maker(model)()
    mx.eval(model(mx.zeros((1, 4), dtype=mx.int32), cache=caches), [c.state for c in caches])
    assert fit.footprint == Footprint.of(caches)


def test_nothing_is_computed_to_tell_it(tmp_path: Path) -> None:
    """The weights of these would take 1.4 TB."""
    settings = {**COMMON, "model_type": "llama", "hidden_size": 65536, "num_hidden_layers": 48}
    settings |= {"intermediate_size": 65536, "num_attention_heads": 512, "head_dim": 128}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    mx.reset_peak_memory()
    before = mx.get_active_memory()  # of other tests in this process; the peak begins there
    fit = fit_of(tmp_path)
    assert fit.footprint.token_bytes == 48 * 2 * 2 * 128 * (2 * fit.widening)
    assert mx.get_peak_memory() - before < 1 << 24


def test_engine_finds_what_was_told(tmp_path: Path) -> None:
    folder = save_small_model(tmp_path / "small")
    fit = fit_of(folder)
    with make_engine(Config(model=str(folder))) as engine:
        status = engine.status()
        assert (status.layers, status.context_len) == (fit.layers, fit.context_len)


def test_quantized_weights_leave_the_caches_in_their_own_type(tmp_path: Path) -> None:
    folder = config_folder(ARCHITECTURES["qwen3"], tmp_path, mx.bfloat16)
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = {"group_size": 64, "bits": 4}
    (folder / "config.json").write_text(json.dumps(config))
    fit = fit_of(folder)
    assert fit.widening == 1
    assert fit.footprint.token_bytes == 4 * 2 * 2 * 32 * 2  # layers, heads, keys and values, bytes


def test_longest_conversation_fits_and_one_more_token_does_not() -> None:
    fit = Fit(Footprint(1000, (Growth(10), Growth(7, 100))), None, "")
    memory_bytes, weights_bytes = 10_000_000, 2_000_000
    room = int(0.4 * (memory_bytes - weights_bytes))
    longest = fit.longest(weights_bytes, memory_bytes)
    assert fit.footprint.at(longest) <= room < fit.footprint.at(longest + 1)


def test_context_of_the_model_is_the_end() -> None:
    fit = Fit(Footprint(0, (Growth(1),)), 4096, "")
    assert fit.longest(0, 1 << 40) == 4096
    assert fit.longest(1 << 41, 1 << 40) == 0


def test_type_that_mlx_lm_does_not_know_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "whisper"}')
    with pytest.raises(
        BadInput, match=r"mlx-lm 0\.\d+\.\d+ does not know models of type 'whisper'"
    ):
        fit_of(tmp_path)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "model_file": "mine.py"}')
    (tmp_path / "mine.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(BadInput, match="--trust-remote-code"):
        fit_of(tmp_path)


def test_damaged_weights_are_told(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(BadInput, match=r"model\.safetensors is damaged"):
        saved_dtype(tmp_path)
