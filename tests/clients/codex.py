"""Codex, unmodified, in its non-interactive mode."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keepwarm.launch import codex
from keepwarm.launch.endpoint import Endpoint

FOLDER = Path(__file__).parents[2] / ".clients"


def program() -> Path | None:
    """Where `make clients` put it."""
    path = FOLDER / "node_modules" / "@openai" / "codex" / "bin" / "codex.js"
    return path if path.is_file() else None


@dataclass(frozen=True)
class Session:
    """One project folder, and the client's own folder beside it."""

    home: Path
    project: Path
    server: Endpoint

    def run(self, words: str) -> Ran:
        """Asks for one thing and waits until the client has ended."""
        arguments = ["exec", "--json", "--skip-git-repo-check"]
        arguments += ["--dangerously-bypass-approvals-and-sandbox", words]
        own = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        own["CODEX_HOME"] = str(self.home / ".codex")
        done = subprocess.run(
            ["node", *codex.command(self.server, str(program()), arguments)],
            env=codex.environment(self.server, own),
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Ran(done.returncode, events, done.stderr)


@dataclass(frozen=True)
class Ran:
    """What the client said."""

    status: int
    events: Sequence[dict[str, Any]]
    errors: str

    @property
    def items(self) -> list[dict[str, Any]]:
        """What was done, in order."""
        return [event["item"] for event in self.events if event["type"] == "item.completed"]
