"""A server that is killed with -9 in the middle of a conversation goes on with it, warm."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.test_serve import Process, running
from tests.compat.serving import save_small_model, text

# Each key has a cache of its own: what one has left on the disk is cold to the other.
KEYS = ("--api-key", "one", "--api-key", "other")
FLAGS = (
    *KEYS,
    "--disk-cache-min-s",
    "0",
    "--disk-cache-idle-s",
    "0.1",
    "--min-span",
    "16",
    "--temp",
    "0",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("models") / "small")


def ask(server: Process, messages: list[dict[str, str]], key: str = "one") -> dict[str, Any]:
    body = {"messages": messages, "max_tokens": 6, "ignore_eos": True}
    url, headers = f"{server.url}/v1/chat/completions", {"Authorization": f"Bearer {key}"}
    found: dict[str, Any] = httpx.post(url, json=body, headers=headers, timeout=60).json()
    return found


def metric(server: Process, name: str) -> float:
    lines = httpx.get(
        f"{server.url}/metrics", headers={"Authorization": "Bearer one"}, timeout=60
    ).text
    found = re.search(rf"^{name} (\S+)$", lines, re.MULTILINE)
    return float(found[1]) if found else 0.0


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(600):
        if is_so():
            return
        time.sleep(0.1)
    raise AssertionError("it never came to that")


def written_tokens(disk: Path) -> int:
    """How far the files on the disk go: their names say it."""
    ends = [int(path.stem.split("-")[2]) for path in disk.glob("*/*.rows")]
    return max(ends, default=0)


def test_killed_server_answers_the_next_turn_warm(folder: Path, tmp_path: Path) -> None:
    disk = ("--disk-cache", str(tmp_path / "disk"))
    messages = [
        {"role": "system", "content": text(3, 60)},
        {"role": "user", "content": text(9, 80)},
    ]
    with running(folder, *FLAGS, *disk) as server:
        assert "readable by you alone" in "".join(server.lines)
        first = ask(server, messages)
        assert first["keepwarm"]["source"] == "none"
        wait_until(lambda: written_tokens(tmp_path / "disk") > 140)
        # Under its name it is written, and a moment later acknowledged.
        wait_until(lambda: metric(server, "keepwarm_disk_written_bytes_total") > 0)
        server.popen.send_signal(signal.SIGKILL)
        assert server.status() == -signal.SIGKILL
    reply = first["choices"][0]["message"]["content"]
    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": text(5, 20)}]

    with running(folder, *FLAGS, *disk) as server:
        wait_until(lambda: metric(server, "keepwarm_disk_on") == 1)
        warm = ask(server, messages)
        cold = ask(server, messages, "other")
    assert warm["keepwarm"]["source"] == "disk"
    assert warm["keepwarm"]["disk_bytes"] > 0
    assert warm["keepwarm"]["timings_ms"]["load"] > 0
    assert warm["keepwarm"]["cached_tokens"] > 140
    assert cold["keepwarm"]["source"] == "none"
    assert warm["choices"][0]["message"] == cold["choices"][0]["message"]
