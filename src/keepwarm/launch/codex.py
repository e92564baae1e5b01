"""What Codex has to be told about a server of ours. Plain functions, no mlx; any thread.

Found in version 0.169.0 by asking it (`make clients`): `-c` goes before the user's config.toml, and
`model_catalog_json` names a file. Events alone count as signs of life, so the time without one is
long.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from keepwarm.errors import BadInput
from keepwarm.launch.catalogue import card
from keepwarm.launch.endpoint import Endpoint
from keepwarm.launch.private import private_file

COMMAND = "codex"
INSTALL = "npm install -g @openai/codex"
# Its prompt and tools are some 7,000 tokens, each result up to 10,000.
LEAST_CONTEXT_LEN = 24_000
_HOUR_MS = 3_600_000
_KEY = "KEEPWARM_API_KEY"


def check(server: Endpoint) -> None:
    """Raises BadInput where a session would end in the middle."""
    if server.context_len is not None and server.context_len < LEAST_CONTEXT_LEN:
        raise BadInput(
            f"{server.model} has a context of {server.context_len:,} tokens; Codex needs"
            f" {LEAST_CONTEXT_LEN:,}: its own prompt takes some 7,000, a result of a tool up to 10,000"
        )


def settings(server: Endpoint) -> dict[str, str]:
    """What its environment has more."""
    return {_KEY: server.api_key} if server.api_key else {}


def environment(server: Endpoint, env: Mapping[str, str]) -> dict[str, str]:
    """`env` for its process."""
    return {**env, **settings(server)}


def command(server: Endpoint, program: str, arguments: Sequence[str]) -> list[str]:
    """What to run. Writes the catalogue to a file of the user's own, one for each model."""
    told = {
        "model": server.model,
        "model_provider": "keepwarm",
        "model_catalog_json": str(_catalogue_file(server)),
        # A tool of OpenAI's servers.
        "web_search": "disabled",
        "model_providers.keepwarm.name": "keepwarm",
        "model_providers.keepwarm.base_url": f"{server.url}/v1",
        "model_providers.keepwarm.wire_api": "responses",
        "model_providers.keepwarm.stream_idle_timeout_ms": _HOUR_MS,
    }
    if server.api_key:
        told["model_providers.keepwarm.env_key"] = _KEY
    # A text in JSON is one in TOML.
    flags = [part for name, value in told.items() for part in ("-c", f"{name}={json.dumps(value)}")]
    return [program, *flags, *arguments]


def _catalogue_file(server: Endpoint) -> Path:
    text = json.dumps({"models": [card(server.model, server.context_len)]}, indent=1)
    return private_file("codex", text)
