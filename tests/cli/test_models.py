"""`keepwarm models`: what it shows people, and what it tells scripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keepwarm.cli.main import main
from tests.compat.serving import save_small_model
from tests.model.test_places import home, put_cached, put_model

__all__ = ["home"]


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, object]]:
    assert main(["models", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    return {model["name"]: model for model in models}


def test_models_are_shown_with_size_context_and_place(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / ".lmstudio/models/owner").mkdir(parents=True)
    save_small_model(home / ".lmstudio/models/owner/small")
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    line = next(line for line in shown.splitlines() if "owner/small" in line)
    assert line.split() == ["owner/small", "759.9", "kB", "4K", "LM", "Studio"]
    assert "keepwarm serve owner/small" in shown


def test_only_the_built_in_model_and_how_to_get_another(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert "sprout" in shown
    assert "mlx-community/" in shown


def test_scripts_get_bytes_and_reasons(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / ".omlx/models").mkdir(parents=True)
    folder = save_small_model(home / ".omlx/models/small")
    put_cached(home, "openai/whisper")
    (home / "hub/models--openai--whisper/snapshots/a1/config.json").write_text(
        '{"model_type": "whisper"}'
    )
    (put_model(home / ".lmstudio/models/a/b") / "tokenizer.json").unlink()
    models = listed(capsys)
    assert set(models) == {"sprout", "small", "openai/whisper", "a/b"}
    assert models["small"]["folder"] == str(folder)
    assert models["small"]["is_usable"]
    assert models["small"]["context_len"] == models["small"]["fits_len"] == 4096
    assert models["small"]["token_bytes"] == 4 * 2 * 2 * 32 * 4
    assert not models["openai/whisper"]["is_usable"]
    assert "does not know models of type" in str(models["openai/whisper"]["reason"])
    assert models["a/b"]["reason"] == "there is no tokenizer (tokenizer.json)"


def test_memory_ends_a_conversation_before_the_model_does(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".omlx/models").mkdir(parents=True)
    save_small_model(home / ".omlx/models/small")
    for memory_bytes, told in ((10_000_000, "1K of 4K"), (1_000_000, "too large")):
        monkeypatch.setattr("keepwarm.machine.free_bytes", lambda memory=memory_bytes: memory)
        assert main(["models"]) == 0
        assert told in capsys.readouterr().out
