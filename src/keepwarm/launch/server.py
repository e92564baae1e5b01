"""A server for the time a client runs: the one that is there, or one that is started. No mlx; main
thread."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from keepwarm.errors import BadInput, Unavailable

_LOOK_S = 0.2
_ANSWER_S = 10.0
_STOP_S = 30.0
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Running:
    """A server by its address."""

    url: str
    api_key: str | None = None

    def get(self, path: str) -> str:
        """Raises OSError where nobody answers, and for what is not a success."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        request = urllib.request.Request(f"{self.url}{path}", headers=key)
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return str(answer.read().decode())

    @property
    def is_there(self) -> bool:
        """Whether a server of ours listens, be it ready or not."""
        try:
            return "live" in json.loads(self.get("/health/live"))
        except (OSError, ValueError):
            return False

    @property
    def is_ready(self) -> bool:
        try:
            self.get("/health")
        except OSError:
            return False
        return True

    def model(self) -> tuple[str, int | None]:
        """The name of the model, and its context. Raises Unavailable."""
        try:
            (card,) = json.loads(self.get("/v1/models"))["data"]
            return str(card["id"]), card.get("max_model_len")
        except urllib.error.HTTPError as error:
            words = "; --api-key KEY is needed" if error.code == 401 else ""
            raise Unavailable(f"{self.url} answered {error.code}{words}") from error
        except (OSError, ValueError, KeyError) as error:
            raise Unavailable(f"no server of keepwarm answers at {self.url}: {error}") from error

    def tally(self) -> Tally:
        """What its counters say now; all 0 where they cannot be read."""
        try:
            return Tally.of(self.get("/metrics"))
        except OSError:
            return Tally()


@dataclass(frozen=True, slots=True)
class Tally:
    """What a server has done."""

    num_requests: float = 0
    cached_tokens: float = 0
    prefilled_tokens: float = 0
    waited_s: float = 0  # for first tokens

    @classmethod
    def of(cls, metrics: str) -> Tally:
        """From its answer to /metrics."""

        def total(name: str) -> float:
            found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", metrics, re.MULTILINE)
            return sum(map(float, found))

        return cls(
            total("keepwarm_requests_total"),
            total("keepwarm_cached_tokens_total"),
            total("keepwarm_prefilled_tokens_total"),
            total("keepwarm_time_to_first_token_seconds_sum"),
        )

    def since(self, before: Tally) -> Tally:
        return Tally(
            self.num_requests - before.num_requests,
            self.cached_tokens - before.cached_tokens,
            self.prefilled_tokens - before.prefilled_tokens,
            self.waited_s - before.waited_s,
        )

    def words(self) -> str:
        """One line for whoever ends a session."""
        if not self.num_requests:
            return "keepwarm: nothing was asked"
        requests = f"{self.num_requests:,.0f} request{'s'[: self.num_requests != 1]}"
        words = f"keepwarm: {requests}, {amount(self.cached_tokens)} tokens not read again"
        if self.prefilled_tokens and self.waited_s:
            spared_s = self.cached_tokens * self.waited_s / self.prefilled_tokens
            words += f", {duration(spared_s)} not waited"
        return words


def amount(tokens: float) -> str:
    """A number of tokens as people say it."""
    for unit, name in ((1e6, "M"), (1e3, "K")):
        if tokens >= unit:
            return f"{tokens / unit:.1f}{name}"
    return f"{tokens:.0f}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"about {seconds:.0f} seconds"
    minutes = seconds / 60
    return f"about {minutes:.0f} minutes" if minutes < 90 else f"about {minutes / 60:.1f} hours"


class Started:
    """A server of our own, which Ctrl-C in this terminal does not reach. A context manager: it is
    stopped at the end of the block."""

    def __init__(self, flags: Sequence[str], server: Running) -> None:
        self.server = server
        self.log = Path(tempfile.mkstemp(prefix="keepwarm-", suffix=".log")[1])
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "keepwarm", "serve", *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def wait_ready(self) -> None:
        """Raises BadInput with the server's own words where it ends before it is ready."""
        while not self.server.is_ready:
            if self._process.poll() is not None:
                lines = [line for line in self.log.read_text().splitlines() if line.strip()]
                said = "\n".join(lines[-_LAST_LINES:]).removeprefix("keepwarm: ")
                raise BadInput(said or f"the server ended; see {self.log}")
            time.sleep(_LOOK_S)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
