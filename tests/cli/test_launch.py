"""`keepwarm launch`, with a program in the place of Claude Code that does what it is told here."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Served, served

# Writes down what it was given, asks once, and ends as it is told.
CLIENT = """#!{python}
import json, os, signal, sys, time, urllib.request
def leave(*_):
    open("interrupted", "w").close()
    sys.exit(7)
signal.signal(signal.SIGINT, leave)
env = {{k: v for k, v in os.environ.items() if k.startswith(("ANTHROPIC", "CLAUDE"))}}
body = {{"max_tokens": 2, "messages": [{{"role": "user", "content": "Hello there, who are you?"}}]}}
for _ in range(2):
    urllib.request.urlopen(urllib.request.Request(
        env["ANTHROPIC_BASE_URL"] + "/v1/messages", json.dumps(body).encode(),
        {{"Content-Type": "application/json", "x-api-key": env["ANTHROPIC_AUTH_TOKEN"]}})).read()
json.dump({{"env": env, "argv": sys.argv[1:]}}, open("given.json", "w"))
if "wait" in sys.argv:
    time.sleep(60)
sys.exit(3)
"""


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "claude"
    program.write_text(CLIENT.format(python=sys.executable))
    program.chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(context_len=100_000) as running:
        yield running


def launch(path: Path, cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {"PATH": str(path), "HOME": str(cwd), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.Popen(
        [sys.executable, "-m", "keepwarm", "launch", "claude", *arguments],
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=120)
    return process.returncode, out, errors


def given(cwd: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((cwd / "given.json").read_text())
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def test_server_that_runs_is_used_and_left(
    server: Served, bin_folder: Path, tmp_path: Path
) -> None:
    done = launch(bin_folder, tmp_path, "--url", f"{server.url}/v1", "--", "-p", "--flag")
    status, _, errors = ended(done)
    assert status == 3, errors
    assert errors.startswith("keepwarm: 2 requests, ")
    assert "not read again" in errors
    told = given(tmp_path)
    assert told["argv"][0] == "--settings"
    assert told["argv"][2:] == ["-p", "--flag"]
    assert told["env"]["ANTHROPIC_BASE_URL"] == server.url
    assert told["env"]["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "100000"
    assert server.http.get("/health").status_code == 200


def test_print_shows_lines_for_a_shell(server: Served, tmp_path: Path) -> None:
    status, out, errors = ended(launch(tmp_path, tmp_path, "--url", server.url, "--print"))
    assert (status, errors) == (0, "")
    shell = f"{out.rpartition('claude --settings')[0]}\necho $CLAUDE_CODE_MAX_CONTEXT_TOKENS"
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stdout == "100000\n"


def test_client_that_is_missing(tmp_path: Path) -> None:
    status, _, errors = ended(launch(tmp_path, tmp_path))
    assert status == 2
    assert "claude is not installed" in errors
    assert "npm install" in errors


def test_context_that_is_too_small(bin_folder: Path, tmp_path: Path) -> None:
    with served(context_len=8192) as small:
        status, _, errors = ended(launch(bin_folder, tmp_path, "--url", small.url))
    assert status == 2
    assert "has a context of 8,192 tokens; Claude Code needs 60,000" in errors
    assert not (tmp_path / "given.json").exists()


def test_ctrl_c_reaches_the_client_and_the_server_goes_with_it(
    bin_folder: Path, tmp_path: Path
) -> None:
    port = free_port()
    flags = ("--port", str(port), "--context-len", "65536", "--", "wait")
    running = launch(bin_folder, tmp_path, *flags)
    for _ in range(600):
        if (tmp_path / "given.json").exists() or running.poll() is not None:
            break
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGINT)
    status, _, errors = ended(running)
    assert status == 7, errors
    assert (tmp_path / "interrupted").exists()
    assert "2 requests" in errors
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_server_that_cannot_start_says_why(bin_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = launch(bin_folder, tmp_path, "./empty", "--port", str(free_port()))
    status, _, errors = ended(done)
    assert status == 2
    assert "empty" in errors.splitlines()[-1]
