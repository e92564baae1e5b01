"""Loading: a model comes with its tokenizer, or one line says why not."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm
import pytest
from mlx.utils import tree_flatten
from mlx_lm.tuner.utils import linear_to_lora_layers
from tokenizers import Tokenizer

from keepwarm.engine.engine import Engine
from keepwarm.engine.request import Request, Sampling
from keepwarm.errors import BadInput
from keepwarm.model import loader, names
from keepwarm.model.defaults import own_sampling, read_sampling, sampling_words
from keepwarm.model.loader import load, model_loader
from keepwarm.model.names import built_in_folder, weights_bytes
from keepwarm.prompt.boundaries import Prompt
from keepwarm.session import Session
from tests.architectures.zoo import ARCHITECTURES
from tests.compat.serving import save_small_model
from tests.model.test_places import put_model


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


def with_generation_config(folder: Path, copy: Path, said: object) -> Path:
    shutil.copytree(folder, copy)
    text = said if isinstance(said, str) else json.dumps(said)
    (copy / "generation_config.json").write_text(text)
    return copy


def test_models_own_sampling_holds_where_nothing_else_is_said(folder: Path, tmp_path: Path) -> None:
    said = {"temperature": 100.0, "top_k": 0, "do_sample": True, "eos_token_id": 1}
    hot = with_generation_config(folder, tmp_path / "hot", said)
    model, tokenizer = load(str(hot))
    assert own_sampling(model) == Sampling(temperature=100.0)
    greedy, _ = mlx_lm.load(str(hot))
    assert own_sampling(greedy) is None

    def replies(session: Session, **options: Any) -> set[tuple[int, ...]]:
        asked = [session.complete("w10 w11", max_tokens=8, **options) for _ in range(3)]
        return {tuple(stream.result.tokens) for stream in asked}

    assert len(replies(Session(model, tokenizer))) > 1
    assert len(replies(Session(model, tokenizer), sampling=Sampling())) == 1
    assert len(replies(Session(greedy, tokenizer))) == 1
    prompt = Prompt([10, 11])
    with Engine(lambda: (model, tokenizer)) as engine:
        assert engine.own_sampling == Sampling(temperature=100.0)
        drawn = [engine.stream(Request(prompt, 8)).result.tokens for _ in range(3)]
        assert len({tuple(tokens) for tokens in drawn}) > 1
        drawn = [engine.stream(Request(prompt, 8, Sampling())).result.tokens for _ in range(3)]
        assert len({tuple(tokens) for tokens in drawn}) == 1


@pytest.mark.parametrize(
    ("said", "sampling"),
    [
        ({"temperature": 0.6, "top_p": 0.95, "top_k": 20}, Sampling(0.6, top_p=0.95, top_k=20)),
        ({"do_sample": True}, Sampling(1.0)),
        ({"do_sample": False, "temperature": 0.7, "top_k": 5}, Sampling(0.0, top_k=5)),
        ({"min_p": 0.1, "temperature": 1}, Sampling(1.0, min_p=0.1)),
        ({"repetition_penalty": 1.05}, Sampling(repetition_penalty=1.05)),
        ({"top_k": -1, "temperature": None}, Sampling()),
        ({"eos_token_id": 1}, None),
        ({"temperature": "hot"}, None),
        ({"temperature": -1}, None),
        ({"temperature": True}, None),
        ([], None),
        ("{", None),
    ],
)
def test_sampling_is_read_from_generation_config(
    said: object, sampling: Sampling | None, tmp_path: Path
) -> None:
    text = said if isinstance(said, str) else json.dumps(said)
    (tmp_path / "generation_config.json").write_text(text)
    assert read_sampling(tmp_path) == sampling


def test_model_without_generation_config_says_nothing(folder: Path, tmp_path: Path) -> None:
    assert read_sampling(tmp_path) is None
    assert own_sampling(load(str(folder))[0]) is None


def test_sampling_of_a_repository_is_found_among_its_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = "0" * 40
    repository = tmp_path / "models--a--b"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    snapshot = repository / "snapshots" / revision
    with_generation_config(folder, snapshot, {"temperature": 0.6})
    monkeypatch.setattr(mlx_lm.utils, "snapshot_download", lambda *_, **__: str(snapshot))
    monkeypatch.setattr(
        loader, "try_to_load_from_cache", partial(loader.try_to_load_from_cache, cache_dir=tmp_path)
    )
    assert own_sampling(load("a/b")[0]) == Sampling(0.6)


def test_sampling_is_told_in_a_few_words() -> None:
    said = Sampling(temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.05)
    assert sampling_words(said) == "temperature 0.6, top_p 0.95, top_k 20, repetition_penalty 1.05"
    assert sampling_words(Sampling(top_k=5)) == "always the likeliest token"


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
    folder = put_model(tmp_path / "model", config='{"model_type": "nobody-knows"}')
    load = model_loader(str(folder))
    with pytest.raises(BadInput, match="cannot load") as refusal:
        load()
    assert "\n" not in str(refusal.value)


def test_repository_that_cannot_be_reached_is_told_in_one_line() -> None:
    with pytest.raises(BadInput, match="nobody/nothing is not on this disk") as refusal:
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
            assert warm.cached_tokens == 600
            said.append(cold.tokens)
    assert said[0] != said[1]


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package whose built-in model is what a test puts there."""
    monkeypatch.setattr(names, "files", lambda _: tmp_path)
    return tmp_path


def test_package_without_its_weights_says_so(package: Path) -> None:
    for ask in (load, lambda: model_loader("sprout"), lambda: names.weights_bytes("sprout")):
        with pytest.raises(BadInput, match="no built-in model; name one"):
            ask()
    (package / "sprout").mkdir()
    (package / "sprout" / "config.json").write_text("{}")
    with pytest.raises(BadInput, match="no built-in model; name one"):
        load()


def test_built_in_model_is_loaded_by_name_and_without_one(package: Path) -> None:
    built_in = save_small_model(package / "sprout")
    expected = flat(load(str(built_in))[0])
    for loaded in (load(), load("sprout"), model_loader("sprout")()):
        assert same(flat(loaded[0]), expected)
    assert names.weights_bytes("sprout") == (built_in / "model.safetensors").stat().st_size


def test_name_of_the_built_in_model_means_it_where_a_folder_has_that_name_too(
    package: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_small_model(package / "sprout")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    Path("sprout").mkdir()
    assert names.source_of("sprout") == str(package / "sprout")
    assert names.source_of("./sprout") == "./sprout"


def test_load_gives_what_mlx_lm_gives(folder: Path) -> None:
    model, tokenizer, config = load(str(folder), return_config=True)
    theirs, _, their_config = mlx_lm.load(str(folder), return_config=True)
    assert same(flat(model), flat(theirs))
    assert config == their_config
    assert tokenizer.encode("w10") == [10]


def test_weights_come_in_the_type_that_is_asked_for(folder: Path) -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        model, _ = load(str(folder), dtype=dtype)
        assert {str(array.dtype) for array in flat(model).values()} == {f"mlx.core.{dtype}"}
    with pytest.raises(BadInput, match="float8"):
        load(str(folder), dtype="float8")


@pytest.mark.skipif(mx.default_device() != mx.cpu, reason="on a GPU 16 bits are fast")
def test_16_bits_are_widened_on_a_cpu_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def dtypes(model: Any) -> set[mx.Dtype]:
        return {array.dtype for array in flat(loader.prepared(model)).values()}

    llama = ARCHITECTURES["llama"]
    assert dtypes(llama.build(mx.bfloat16)) == {mx.float32}
    quantized = llama.build(mx.bfloat16)
    nn.quantize(quantized, group_size=32)
    assert dtypes(quantized) == {mx.bfloat16, mx.uint32}
    monkeypatch.setattr(loader, "free_bytes", lambda: 1000)
    assert dtypes(llama.build(mx.bfloat16)) == {mx.bfloat16}


def test_what_a_model_keeps_in_its_own_precision_stays_so() -> None:
    model = ARCHITECTURES["qwen3_5"].build(mx.float32)
    kept = [name for name in flat(model) if not model.cast_predicate(name)]
    narrow = flat(loader.prepared(model, "bfloat16"))
    assert kept
    assert {narrow[name].dtype for name in kept} == {mx.float32}
    assert {array.dtype for name, array in narrow.items() if name not in kept} == {mx.bfloat16}


def flat(model: Any) -> dict[str, mx.array]:
    return dict(tree_flatten(model.parameters()))


def same(one: dict[str, mx.array], other: dict[str, mx.array]) -> bool:
    return one.keys() == other.keys() and all(bool(mx.all(one[k] == other[k])) for k in one)


def test_built_in_tokenizer_splits_as_its_file_says() -> None:
    """transformers goes by the type of the model, and would split as Qwen's tokenizer does."""
    _, tokenizer = load()
    file = Tokenizer.from_file(str(built_in_folder() / "tokenizer.json"))
    for text in ("Your dog is called Bramble.", "the north door", "K7-42, or 3 lamps?\n\nYes: no"):
        assert tokenizer.encode(text) == file.encode(text, add_special_tokens=False).ids
