"""Models on the disk are found where other programs put them, and each says whether it is whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import constants

from keepwarm.errors import BadInput
from keepwarm.model import names, places
from keepwarm.model.places import GGUF, find, local_models, nearest


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home folder in which no program has put anything yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("SWAMA_MODELS", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def put_model(folder: Path, num_bytes: int = 10, config: str = '{"model_type": "llama"}') -> Path:
    """What a model looks like from outside."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(num_bytes))
    return folder


def put_cached(home: Path, name: str, revision: str = "a1") -> Path:
    """As huggingface_hub keeps it."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(revision)
    return put_model(repository / "snapshots" / revision)


def test_models_of_every_program_are_found(home: Path) -> None:
    put_cached(home, "mlx-community/Qwen3-0.6B-4bit")
    put_model(home / ".lmstudio/models/lmstudio-community/gemma-4bit", 20)
    put_model(home / ".cache/lm-studio/models/old/llama")
    put_model(home / ".omlx/models/flat")
    put_model(home / ".exo/models/owner--with-dashes")
    put_model(home / ".swama/models/someone/small")
    put_model(home / "Documents/huggingface/models/swift/phi")
    assert [(m.name, m.place, m.weights_bytes, m.reason) for m in local_models()] == [
        ("flat", "oMLX", 10, None),
        ("lmstudio-community/gemma-4bit", "LM Studio", 20, None),
        ("mlx-community/Qwen3-0.6B-4bit", "Hugging Face", 10, None),
        ("old/llama", "LM Studio", 10, None),
        ("owner/with-dashes", "exo", 10, None),
        ("someone/small", "Swama", 10, None),
        ("swift/phi", "Swift", 10, None),
    ]


def test_folder_that_lm_studio_was_told_to_use_is_looked_into(home: Path) -> None:
    moved, disk = home / "elsewhere", home / "disk"
    moved.mkdir()
    (home / ".lmstudio-home-pointer").write_text(f"{moved}\n")
    (moved / "settings.json").write_text(json.dumps({"downloadsFolder": str(disk)}))
    put_model(disk / "a/b")
    assert [model.name for model in local_models()] == ["a/b"]


def test_gguf_is_shown_as_what_it_is(home: Path) -> None:
    folder = home / ".lmstudio/models/owner/model-GGUF"
    folder.mkdir(parents=True)
    (folder / "model-Q4.gguf").write_bytes(bytes(30))
    manifest = home / ".ollama/models/manifests/registry.ollama.ai/library/llama3/8b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"layers": [{"size": 40}, {"size": 2}]}))
    assert [(m.name, m.weights_bytes, m.reason) for m in local_models()] == [
        ("llama3:8b", 42, GGUF),
        ("owner/model-GGUF", 30, GGUF),
    ]


def test_missing_parts_are_told(home: Path) -> None:
    folder = put_cached(home, "a/half")
    weights = {"x": "model-1.safetensors", "y": "model-2.safetensors", "z": "model-3.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    (folder / "model-1.safetensors").write_bytes(b"")
    (put_cached(home, "a/mute") / "tokenizer.json").unlink()
    (put_cached(home, "a/nothing") / "config.json").unlink()
    assert {model.name: model.reason for model in local_models()} == {
        "a/half": "2 of its files are missing, such as model-2.safetensors",
        "a/mute": "there is no tokenizer (tokenizer.json)",
        "a/nothing": "there is no config.json",
    }


def test_repository_that_holds_no_language_model_is_left_out(home: Path) -> None:
    (home / "hub/models--a--lone-tokenizer/snapshots/1").mkdir(parents=True)
    (home / "hub/datasets--a--b/snapshots/1").mkdir(parents=True)
    assert local_models() == []


def test_whole_revision_is_found_while_the_next_one_is_downloaded(home: Path) -> None:
    old = put_cached(home, "a/b", "1" * 40)
    new = put_cached(home, "a/b", "2" * 40)
    assert [model.folder for model in local_models()] == [new]
    (new / "model.safetensors").unlink()
    assert [model.folder for model in local_models()] == [old]


def test_model_that_can_be_served_goes_before_one_of_its_name_that_cannot(home: Path) -> None:
    (put_cached(home, "a/b") / "model.safetensors").unlink()
    whole = put_model(home / ".lmstudio/models/a/b")
    found = find("a/b")
    assert found is not None
    assert found.folder == whole


def test_name_may_leave_the_publisher_and_the_case_out(home: Path) -> None:
    put_cached(home, "mlx-community/Qwen3-0.6B-4bit")
    for name in (
        "mlx-community/Qwen3-0.6B-4bit",
        "MLX-community/qwen3-0.6b-4BIT",
        "qwen3-0.6b-4bit",
    ):
        found = find(name)
        assert found is not None
        assert found.name == "mlx-community/Qwen3-0.6B-4bit"
    assert find("Qwen3") is None


def test_name_of_several_is_asked_for_in_full(home: Path) -> None:
    put_cached(home, "a/model")
    put_cached(home, "b/model")
    with pytest.raises(BadInput, match="'model' may mean a/model or b/model"):
        find("model")
    found = find("b/model")
    assert found is not None
    assert found.name == "b/model"


def test_misspelt_name_is_near_the_one_that_was_meant(home: Path) -> None:
    put_cached(home, "mlx-community/Qwen3-0.6B-4bit")
    put_cached(home, "mlx-community/gemma-3-1b-it-4bit")
    for name in ("Qwen3-0.6B-4bt", "mlx-comunity/Qwen3-0.6B-4bit", "qwen-0.6b-4bit"):
        assert nearest(name)[0] == "mlx-community/Qwen3-0.6B-4bit"
    assert nearest("whatever") == []


def test_unreadable_folders_and_lists_are_passed_over(home: Path) -> None:
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio/settings.json").write_text("{")
    (home / ".omlx").write_text("no folder")
    assert local_models() == []
    assert places.why_not(home / "missing") == "there is no config.json"


def test_names_of_models_here_need_no_download(home: Path) -> None:
    folder = put_model(home / ".lmstudio/models/owner/small")
    for name in ("owner/small", "small", "Owner/SMALL"):
        assert names.source_of(name) == str(folder)
        assert names.full_name(name) == "owner/small"
    assert names.source_of("owner/other") == "owner/other"


def test_name_that_is_not_here_and_no_repository_is_told_with_the_nearest(home: Path) -> None:
    put_model(home / ".lmstudio/models/owner/Qwen3-0.6B-4bit")
    with pytest.raises(BadInput, match=r"no model 'Qwen3-0.6B-4bt'.*mean owner/Qwen3-0.6B-4bit\?"):
        names.source_of("Qwen3-0.6B-4bt")


def test_gguf_is_told_what_is_served_instead(home: Path) -> None:
    folder = home / ".lmstudio/models/owner/model-GGUF"
    folder.mkdir(parents=True)
    (folder / "model-Q4.gguf").write_bytes(b"")
    for name in ("owner/model-GGUF", "model-Q4.gguf", str(folder / "model-Q4.gguf")):
        with pytest.raises(BadInput, match="GGUF; keepwarm serves MLX weights"):
            names.source_of(name)


def test_broken_model_of_another_program_is_told_and_one_of_the_hub_is_downloaded_on(
    home: Path,
) -> None:
    (put_model(home / ".lmstudio/models/a/b") / "model.safetensors").unlink()
    (put_model(home / ".lmstudio/models/a/c") / "tokenizer.json").unlink()
    (put_cached(home, "d/e") / "tokenizer.json").unlink()
    with pytest.raises(
        BadInput, match=r"a/c, which LM Studio has here, cannot be served: .*tokenizer"
    ):
        names.source_of("a/c")
    assert names.source_of("d/e") == "d/e"
