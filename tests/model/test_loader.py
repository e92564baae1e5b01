"""Loading: a model comes with its tokenizer, or one line says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers

from keepwarm.engine.engine import Engine
from keepwarm.engine.request import Request
from keepwarm.errors import BadInput
from keepwarm.model.loader import model_loader, weights_bytes
from keepwarm.prompt.boundaries import Prompt
from tests.compat.serving import save_small_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("models") / "small")


def test_model_and_tokenizer_are_loaded(folder: Path) -> None:
    model, tokenizer = model_loader(str(folder))()
    assert model.layers
    assert tokenizer.encode("w10") == [10]


def test_template_of_the_operator_replaces_the_models(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("w9 {{ messages[0].content }}")
    _, tokenizer = model_loader(str(folder), chat_template=str(file))()
    said = [{"role": "user", "content": "w10"}]
    assert tokenizer.apply_chat_template(said, tokenize=False) == "w9 w10"


def test_weights_are_as_large_as_their_files(folder: Path) -> None:
    assert weights_bytes(str(folder)) == (folder / "model.safetensors").stat().st_size
    assert weights_bytes("owner/elsewhere") is None


@pytest.mark.parametrize("name", ["", "/no/such", "./no/such", "~/no/such/model", "a/b/c"])
def test_folder_that_is_not_there_is_told_at_once(name: str) -> None:
    with pytest.raises(BadInput, match="no model folder"):
        model_loader(name)


def test_folder_that_is_no_model_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"config\.json"):
        model_loader(str(tmp_path))


def test_missing_adapter_and_template_are_told_at_once(folder: Path) -> None:
    with pytest.raises(BadInput, match="adapter"):
        model_loader(str(folder), adapter_path="/no/such")
    with pytest.raises(BadInput, match="template"):
        model_loader(str(folder), chat_template="/no/such")


def test_what_cannot_be_loaded_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nobody-knows"}')
    load = model_loader(str(tmp_path))
    with pytest.raises(BadInput, match="cannot load") as refusal:
        load()
    assert "\n" not in str(refusal.value)


def test_repository_that_cannot_be_reached_is_told_in_one_line() -> None:
    with pytest.raises(BadInput, match="cannot load nobody/nothing") as refusal:
        model_loader("nobody/nothing")()
    assert "\n" not in str(refusal.value)


def save_adapter(model: Any, folder: Path) -> Path:
    """LoRA layers with weights that change every answer."""
    parameters = {"rank": 4, "scale": 10.0, "dropout": 0.0}
    linear_to_lora_layers(model, 4, parameters)
    drawn = {
        name: mx.random.normal(array.shape, key=mx.random.key(i))
        for i, (name, array) in enumerate(tree_flatten(model.trainable_parameters()))
        if name.endswith(("lora_a", "lora_b"))
    }
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), drawn)
    config = {"fine_tune_type": "lora", "num_layers": 4, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_adapter_changes_the_answers_and_is_served_through_the_cache(
    folder: Path, tmp_path: Path
) -> None:
    adapter = save_adapter(model_loader(str(folder))()[0], tmp_path / "adapter")
    request = Request(Prompt([10 + i % 90 for i in range(600)]), 6, ignore_eos=True)
    said = []
    for path in (None, str(adapter)):
        with Engine(model_loader(str(folder), adapter_path=path)) as engine:
            cold, warm = (engine.stream(request).result for _ in range(2))
            assert warm.tokens == cold.tokens
            assert warm.cached_tokens == 599
            said.append(cold.tokens)
    assert said[0] != said[1]
