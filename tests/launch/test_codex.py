"""What Codex is told."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from keepwarm.errors import BadInput
from keepwarm.launch import codex
from keepwarm.launch.endpoint import Endpoint

SERVER = Endpoint("http://127.0.0.1:8080", "org/model", 131_072, "KEY")


def told(server: Endpoint) -> dict[str, object]:
    """The settings as Codex reads them: TOML, one behind each -c."""
    program, *flags = codex.command(server, "/bin/codex", ["exec", "Hi"])
    assert program == "/bin/codex"
    assert flags[-2:] == ["exec", "Hi"]
    assert set(flags[:-2:2]) == {"-c"}
    return tomllib.loads("\n".join(flags[1:-2:2]))


def test_provider_is_this_server() -> None:
    settings = told(SERVER)
    assert settings["model"] == "org/model"
    assert settings["model_provider"] == "keepwarm"
    assert settings["model_providers"] == {
        "keepwarm": {
            "name": "keepwarm",
            "base_url": "http://127.0.0.1:8080/v1",
            "wire_api": "responses",
            "stream_idle_timeout_ms": 3_600_000,
            "env_key": "KEEPWARM_API_KEY",
        }
    }
    assert codex.environment(SERVER, {"PATH": "/bin"}) == {
        "PATH": "/bin",
        "KEEPWARM_API_KEY": "KEY",
    }


def test_catalogue_has_the_true_window_and_apply_patch() -> None:
    file = Path(str(told(SERVER)["model_catalog_json"]))
    (about,) = json.loads(file.read_text(encoding="utf-8"))["models"]
    assert about["slug"] == "org/model"
    assert about["context_window"] == 131_072
    assert about["auto_compact_token_limit"] < 131_072
    assert about["apply_patch_tool_type"] == "freeform"


def test_server_without_a_key_needs_none() -> None:
    open_server = Endpoint(SERVER.url, "a", None)
    assert "env_key" not in str(told(open_server))
    assert codex.settings(open_server) == {}


def test_context_that_ends_a_session_is_refused() -> None:
    with pytest.raises(BadInput, match=r"context of 8,192 tokens; Codex needs 24,000"):
        codex.check(Endpoint(SERVER.url, "a", 8192))
    codex.check(SERVER)
