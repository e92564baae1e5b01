"""What Claude Code is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keepwarm.errors import BadInput
from keepwarm.launch import claude
from keepwarm.launch.endpoint import Endpoint
from keepwarm.launch.server import Tally

SERVER = Endpoint("http://127.0.0.1:8080", "org/model", 131_072, "KEY")


def test_settings_go_before_the_users_own() -> None:
    program, flag, told, *rest = claude.command(SERVER, "/bin/claude", ["--continue"])
    assert (program, flag, rest) == ("/bin/claude", "--settings", ["--continue"])
    assert "KEY" not in told  # whoever lists processes reads it
    path = Path(told)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    settings = json.loads(path.read_text())
    assert settings["model"] == "org/model"
    assert settings["env"] == claude.settings(SERVER)


def test_settings_without_a_key_need_no_file() -> None:
    keyless = Endpoint(SERVER.url, SERVER.model, SERVER.context_len)
    _, _, told = claude.command(keyless, "/bin/claude", [])
    assert json.loads(told)["env"] == claude.settings(keyless)


def test_window_is_the_true_one() -> None:
    settings = claude.settings(SERVER)
    assert settings["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "131072"
    assert int(settings["CLAUDE_CODE_MAX_OUTPUT_TOKENS"]) <= 131_072 // 4
    assert settings["ANTHROPIC_AUTH_TOKEN"] == "KEY"
    unknown = Endpoint(SERVER.url, "a", None)
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS" not in claude.settings(unknown)


def test_model_is_not_taken_for_one_of_anthropics() -> None:
    assert claude.model_name("Claude-like-7B") == "keepwarm/Claude-like-7B"
    assert claude.model_name("org/claude") == "org/claude"


def test_keys_for_other_servers_stay_behind() -> None:
    env = {"PATH": "/bin", "ANTHROPIC_API_KEY": "sk", "CLAUDE_CODE_USE_BEDROCK": "1"}
    given = claude.environment(SERVER, env)
    assert given["PATH"] == "/bin"
    assert "ANTHROPIC_API_KEY" not in given
    assert "CLAUDE_CODE_USE_BEDROCK" not in given


def test_context_that_ends_a_session_is_refused() -> None:
    with pytest.raises(BadInput, match=r"context of 32,768 tokens; Claude Code needs 60,000"):
        claude.check(Endpoint(SERVER.url, "a", 32_768))
    claude.check(SERVER)
    claude.check(Endpoint(SERVER.url, "a", None))


def test_session_is_told_by_what_was_not_read_again() -> None:
    before = Tally(2, 100, 1000, 1)
    after = Tally(43, 1_200_100, 21_000, 15)
    expected = "keepwarm: 41 requests, 1.2M tokens not read again, about 14 minutes not waited"
    assert after.since(before).words() == expected
    assert Tally().words() == "keepwarm: nothing was asked"


def test_tally_adds_up_what_metrics_say() -> None:
    text = """# TYPE keepwarm_requests_total counter
keepwarm_requests_total{outcome="stop"} 3.0
keepwarm_requests_total{outcome="length"} 1.0
keepwarm_cached_tokens_total 20.0
keepwarm_prefilled_tokens_total 1e+02
keepwarm_time_to_first_token_seconds_sum 0.5
"""
    assert Tally.of(text) == Tally(4, 20, 100, 0.5)
