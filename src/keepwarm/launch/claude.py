"""What Claude Code has to be told about a server of ours. Plain functions, no mlx; any thread.

Found in version 2.1.328 by asking it (`make clients`): it takes the context window from
CLAUDE_CODE_MAX_CONTEXT_TOKENS where the model's name is none of Anthropic's, keeps room for a reply
and 13,000 tokens more, and compacts the conversation when the rest is full. A user's settings.json
goes before the environment, and `--settings` before that, so it is told both ways.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from keepwarm.errors import BadInput
from keepwarm.launch.endpoint import Endpoint
from keepwarm.launch.private import private_file

COMMAND = "claude"
INSTALL = "npm install -g @anthropic-ai/claude-code"
# Its own prompt and tools are some 20,000 tokens, and it must be able to compact itself.
LEAST_CONTEXT_LEN = 60_000
_MOST_REPLY_LEN = 32_000
_HOUR_MS = "3600000"
# What would lead it past this server, or make it ask which of two keys is meant.
_FOREIGN = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_CUSTOM_HEADERS",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
)


def check(server: Endpoint) -> None:
    """Raises BadInput where a session would end in the middle."""
    if server.context_len is not None and server.context_len < LEAST_CONTEXT_LEN:
        raise BadInput(
            f"{server.model} has a context of {server.context_len:,} tokens; Claude Code needs"
            f" {LEAST_CONTEXT_LEN:,}: its own prompt takes some 20,000, and 33,000 stay free for the"
            " summary that lets a long session go on. Name another model: keepwarm launch claude MODEL"
        )


def settings(server: Endpoint) -> dict[str, str]:
    """The environment of its process."""
    name = model_name(server.model)
    told = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.api_key or "none",
        "ANTHROPIC_MODEL": name,
        "ANTHROPIC_CUSTOM_MODEL_OPTION": name,
        # What it would ask Anthropic's other models is asked of this one.
        "ANTHROPIC_DEFAULT_OPUS_MODEL": name,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": name,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": name,
        "ANTHROPIC_DEFAULT_FABLE_MODEL": name,
        "ANTHROPIC_SMALL_FAST_MODEL": name,
        "CLAUDE_CODE_SUBAGENT_MODEL": name,
        # A block in front of the prompt that changes with every session.
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # A long prompt may be read for minutes.
        "API_TIMEOUT_MS": _HOUR_MS,
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": _HOUR_MS,
        "CLAUDE_STREAM_FIRST_BYTE_TIMEOUT_MS": _HOUR_MS,
    }
    if server.context_len is not None:
        told["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(server.context_len)
        reply_len = min(_MOST_REPLY_LEN, server.context_len // 4)
        told["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] = str(reply_len)
    return told


def model_name(model: str) -> str:
    """What it may call a model: it believes to know the window of all that sound like its own."""
    return f"keepwarm/{model}" if model.lower().startswith(("claude", "anthropic")) else model


def environment(server: Endpoint, env: Mapping[str, str]) -> dict[str, str]:
    """`env` for its process."""
    return {k: v for k, v in env.items() if k not in _FOREIGN} | settings(server)


def command(server: Endpoint, program: str, arguments: Sequence[str]) -> list[str]:
    """What to run. Settings of the user's own are merged with these and lose against them. A key
    goes by a file: every user of the machine can read a command line."""
    told = json.dumps({"model": model_name(server.model), "env": settings(server)})
    if server.api_key:
        told = str(private_file("claude", told))
    return [program, "--settings", told, *arguments]
