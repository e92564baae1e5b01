"""Claude Code, unmodified, in its non-interactive mode."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepwarm.launch import claude
from keepwarm.launch.endpoint import Endpoint

_MOST_S = 600
FOLDER = Path(__file__).parents[2] / ".clients"


def program() -> Path | None:
    """Where `make clients` put it: the package's own wrapper needs a newer node than many have."""
    packages = FOLDER / "node_modules" / "@anthropic-ai"
    found = sorted(packages.glob("claude-code-*/claude*"))
    return next((path for path in found if os.access(path, os.X_OK) and path.is_file()), None)


@dataclass(frozen=True)
class Session:
    """One project folder, and the client's own folder beside it."""

    home: Path
    project: Path
    server: Endpoint
    mcp: dict[str, Any] = field(default_factory=dict)

    def run(self, words: str, *more: str, most_s: float = _MOST_S) -> Ran:
        """Asks for one thing and waits until the client has ended."""
        path = program()
        assert path is not None
        arguments = ["-p", words, "--output-format", "stream-json", "--verbose"]
        arguments += ["--permission-mode", "bypassPermissions", *more]
        if self.mcp:
            arguments += ["--mcp-config", json.dumps({"mcpServers": self.mcp})]
        own = {"PATH": os.environ["PATH"], "HOME": str(self.home), "IS_SANDBOX": "1"}
        process = subprocess.Popen(
            claude.command(self.server, str(path), arguments),
            env=claude.environment(self.server, own),
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            said, errors = process.communicate(timeout=most_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what it started holds its pipes
            said, errors = process.communicate()
        return Ran(process.returncode, _events(said), errors)


@dataclass(frozen=True)
class Ran:
    """What the client said."""

    status: int
    events: Sequence[dict[str, Any]]
    errors: str

    @property
    def result(self) -> dict[str, Any]:
        return next(event for event in reversed(self.events) if event["type"] == "result")


def _events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
