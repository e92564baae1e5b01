"""Starts the processes that measure, and asks them. Main thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any

from keepwarm.errors import KeepwarmError


class WorkerFailed(KeepwarmError):
    """A process ended before it answered; the message has its last line."""


@dataclass(frozen=True, slots=True)
class System:
    """Something to measure, and the environment that makes it that."""

    name: str  # "keepwarm" or "mlx-lm"
    setting: str  # how it was set up, in words
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    job: Mapping[str, Any] = field(default_factory=dict, hash=False)  # besides what all do


class Worker:
    """A process that reads prompts as `system` does, or whatever `module` does. A context manager:
    it ends with the block."""

    def __init__(
        self, system: System, job: Mapping[str, Any], module: str = "keepwarm.bench.worker"
    ) -> None:
        self.system = system
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                module,
                json.dumps({"system": system.name, **job, **system.job}),
            ],
            env={**os.environ, **system.env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Waits for the answer. Raises WorkerFailed."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it wrote last says why
        return self.hear()

    def hear(self) -> dict[str, Any]:
        """The next line it says; the first is about itself. Raises WorkerFailed."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.system.name} ({self.system.setting}): {self._last_words()}")
        heard: dict[str, Any] = json.loads(line)
        return heard

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it ended with status {self._process.returncode}"
