"""Settings: where each may be said, and who goes first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from keepwarm.config import (
    Config,
    Percent,
    read_budget,
    read_bytes,
    read_config,
    settings,
    unknown_in,
)
from keepwarm.engine.request import DecodeMode, IdlePrefill, Sampling
from keepwarm.errors import BadInput


def test_defaults_are_those_of_the_table() -> None:
    assert read_config({}, {}) == Config()


def test_flag_goes_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file = tmp_path / "keepwarm.toml"
    file.write_text("max-queue = 3\nmax-running = 4\nport = 5\n")
    env = {"KEEPWARM_MAX_QUEUE": "6", "KEEPWARM_PORT": "7", "OTHER": "x"}
    config = read_config({"port": "8", "max-running": None}, env, file)
    assert (config.port, config.max_queue, config.max_running) == (8, 6, 4)
    assert config.default_reply_len == 512  # the built-in model's
    assert Config(model="other").default_reply_len == 16384


def test_flag_overrules_what_the_model_says() -> None:
    own = Sampling(temperature=0.6, top_p=0.95, top_k=20)
    assert Config().sampling(own) == own
    assert Config().sampling(None) == Sampling()
    said = read_config({"temp": "0", "top-k": "0"}, {})
    assert said.sampling(own) == Sampling(temperature=0.0, top_p=0.95)
    off = read_config({"generation-config": "off", "min-p": "0.1"}, {})
    assert off.sampling(own) == Sampling(min_p=0.1)


# A value other than the default for each setting, as text and as it is read.
SAID: dict[str, tuple[str, Any]] = {
    "model": ("a/b", "a/b"),
    "served-name": ("me", "me"),
    "adapter-path": ("dir", "dir"),
    "trust-remote-code": ("yes", True),
    "chat-template": ("t.jinja", "t.jinja"),
    "chat-template-args": ('{"a": 1}', {"a": 1}),
    "dtype": ("float16", "float16"),
    "kernels": ("mlx-lm", "mlx-lm"),
    "context-len": ("100", 100),
    "hygiene-off": ("developer", ("developer",)),
    "host": ("::1", "::1"),
    "port": ("1", 1),
    "api-key": ("a,b", ("a", "b")),
    "shared-cache": ("1", True),
    "cors-origin": ("http://a", ("http://a",)),
    "allowed-host": ("a", ("a",)),
    "max-body-bytes": ("1MB", 1_000_000),
    "keep-alive-s": ("1.5", 1.5),
    "shutdown-s": ("0", 0.0),
    "drain-s": ("0", 0.0),
    "log-level": ("debug", "debug"),
    "log-json": ("true", True),
    "hide-text": ("true", True),
    "cache-bytes": ("30%", Percent(30)),
    "exact": ("true", True),
    "min-span": ("64", 64),
    "prefill-step": ("4096", 4096),
    "policy": ("lru", "lru"),
    "kv-bits": ("8", 8),
    "kv-group-size": ("32", 32),
    "disk-cache": ("dir", "dir"),
    "disk-cache-bytes": ("1GB", 10**9),
    "disk-cache-days": ("7", 7.0),
    "disk-cache-write-bytes-per-day": ("5GB", 5 * 10**9),
    "disk-cache-idle-s": ("1", 1.0),
    "disk-cache-min-s": ("0", 0.0),
    "idle-prefill": ("off", IdlePrefill.OFF),
    "decode": ("turn", DecodeMode.TURN),
    "max-running": ("2", 2),
    "max-queue": ("2", 2),
    "max-stall-ms": ("10", 10.0),
    "memory-bytes": ("2GiB", 2 << 30),
    "max-tokens": ("7", 7),
    "generation-config": ("off", "off"),
    "thinking-budget": ("100", 100),
    "temp": ("0.7", 0.7),
    "top-p": ("0.9", 0.9),
    "top-k": ("40", 40),
    "min-p": ("0.1", 0.1),
    "repetition-penalty": ("1.1", 1.1),
}


@pytest.mark.parametrize("name", [s.name for _, s in settings() if s.name != "api-key-file"])
def test_setting_is_read_from_flag_environment_and_file(name: str, tmp_path: Path) -> None:
    text, expected = SAID[name]
    field, setting = next(pair for pair in settings() if pair[1].name == name)
    file = tmp_path / "keepwarm.toml"
    file.write_text(f"{name.replace('-', '_')} = '{text}'\n")
    for config in (
        read_config({name: text}, {}),
        read_config({}, {setting.env: text}),
        read_config({}, {}, file),
    ):
        assert getattr(config, field.name) == expected != field.default


def test_file_may_use_its_own_types(tmp_path: Path) -> None:
    file = tmp_path / "keepwarm.toml"
    file.write_text('port = 1\nexact = true\napi-key = ["a", "b"]\nchat-template-args = {b = 2}\n')
    config = read_config({}, {}, file)
    assert (config.port, config.exact, config.api_keys) == (1, True, ("a", "b"))
    assert config.template_kwargs() == {"b": 2}


def test_keys_come_from_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\nalpha\n\n beta \n")
    config = read_config({"api-key": ["gamma"], "api-key-file": str(file)}, {})
    assert config.api_keys == ("gamma", "alpha", "beta")
    assert "alpha" not in repr(config)


@pytest.mark.parametrize("content", ["", "# none\n", None])
def test_no_key_in_the_file_does_not_open_the_server(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadInput, match="key"):
        read_config({"api-key-file": str(file)}, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000", 1000),
        ("4GB", 4 * 10**9),
        ("4 g", 4 * 10**9),
        ("1.5kB", 1500),
        ("512MiB", 512 << 20),
    ],
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert read_bytes(text) == read_budget(text) == expected


@pytest.mark.parametrize("text", ["", "much", "-1", "4XB", "4i", "101%", "-1%", "x%", "nan%"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        read_budget(text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("port", "65536"),
        ("port", "http"),
        ("kv-bits", "7"),
        ("kv-group-size", "48"),
        ("temp", "3"),
        ("top-p", "nan"),
        ("min-span", "5000"),
        ("keep-alive-s", "0"),
        ("policy", "random"),
        ("idle-prefill", "some"),
        ("exact", "maybe"),
        ("chat-template-args", "[]"),
        ("chat-template-args", "{"),
        ("log-level", "loud"),
    ],
)
def test_wrong_value_is_refused_by_its_name(name: str, text: str) -> None:
    with pytest.raises(BadInput, match=name):
        read_config({name: text}, {})


def test_unknown_rule_of_hygiene_is_refused() -> None:
    with pytest.raises(BadInput, match=r"attachment'; the rules are billing_header"):
        read_config({"hygiene-off": ["attachment"]}, {})


def test_engine_refuses_what_is_its_own() -> None:
    with pytest.raises(BadInput, match="max_queue"):
        read_config({"max-queue": "0"}, {}).engine_settings()


def test_engine_gets_its_settings() -> None:
    said = {"max-stall-ms": "20", "decode": "turn", "memory-bytes": "1GB"}
    made = read_config(said, {}).engine_settings()
    assert (made.max_stall_s, made.decode, made.memory_bytes) == (0.02, DecodeMode.TURN, 10**9)


def test_unknown_name_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keepwarm.toml"
    file.write_text("max-ques = 3\n")
    with pytest.raises(BadInput, match=r"max-ques \(did you mean max-queue\?\)"):
        read_config({}, {}, file)


@pytest.mark.parametrize("content", ["port = ", None])
def test_file_that_cannot_be_read_is_told(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "keepwarm.toml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(BadInput, match="cannot read"):
        read_config({}, {}, file)


def test_every_setting_is_documented_in_the_words_of_its_help() -> None:
    page = (Path(__file__).parents[1] / "docs" / "configuration.md").read_text(encoding="utf-8")
    lines = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert [s.name for _, s in settings() if s.words not in lines.get(s.name, "")] == []


@pytest.mark.parametrize("given", [{"api-key": [""]}, {"api-key": [" ", ""]}])
def test_empty_key_does_not_open_the_server(given: dict[str, list[str]]) -> None:
    with pytest.raises(BadInput, match="--api-key: this is empty"):
        read_config(given, {})
    with pytest.raises(BadInput, match="KEEPWARM_API_KEY: this is empty"):
        read_config({}, {"KEEPWARM_API_KEY": ""})


def test_variable_that_is_no_setting_is_named_and_ignored() -> None:
    """Kubernetes sets variables of its own for a service that is called keepwarm."""
    env = {"KEEPWARM_SERVICE_HOST": "10.0.0.1", "KEEPWARM_MAX_QUEU": "3", "KEEPWARM_PORT": "5"}
    assert read_config({}, {**env, "OTHER": "4"}).port == 5
    mistaken, foreign = unknown_in({**env, "KEEPWARM_SOAK_S": "1", "OTHER": "4"})
    assert mistaken.startswith("KEEPWARM_MAX_QUEU is ignored")
    assert mistaken.endswith("did you mean KEEPWARM_MAX_QUEUE?")
    assert foreign == "KEEPWARM_SERVICE_HOST is ignored, since there is no such setting"


def test_text_for_a_number_is_told_in_plain_words() -> None:
    with pytest.raises(BadInput, match="--port: 'abc' is not a whole number"):
        read_config({"port": "abc"}, {})
