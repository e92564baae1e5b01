"""`keepwarm serve` as a person runs it: a process of its own, a real model folder, real signals."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm import Placement
from keepwarm.cli.engine import make_engine
from keepwarm.cli.main import main
from keepwarm.cli.progress import ready_words
from keepwarm.config import Config, Percent, read_config
from keepwarm.model import names
from keepwarm.prompt.template import trouble_with
from tests.compat.serving import save_small_model
from tests.model.test_places import put_model
from tests.server.serving import listening


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("models") / "small")


class Process:
    """A server that says where it is; `lines` is all it said until then."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        assert popen.stdout is not None
        self.lines: list[str] = []
        for line in popen.stdout:
            self.lines.append(line)
            if line.startswith("    -d "):
                break
        found = re.search(r"http://\S+(?=/v1$)", "".join(self.lines), re.MULTILINE)
        assert found is not None, self.lines
        self.url = found[0]

    def interrupt(self) -> None:
        self.popen.send_signal(signal.SIGINT)

    def status(self) -> int:
        return self.popen.wait(60)


@contextmanager
def running(folder: Path, *flags: str) -> Iterator[Process]:
    # On the CPU, mlx would start a C++ compiler for every new shape of a compiled function.
    env = {**os.environ, "MLX_DISABLE_COMPILE": "1", "KEEPWARM_TEMP": "0.5"}
    command = [sys.executable, "-m", "keepwarm.cli.main", "serve", str(folder), "--port", "0"]
    with subprocess.Popen(
        [*command, *flags],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2] / "src",
    ) as popen:
        try:
            yield Process(popen)
        finally:
            popen.kill()


def long_stream(url: str, num_tokens: int) -> tuple[threading.Thread, list[str], threading.Event]:
    """A client that reads a stream; what it got, and when it has begun."""
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = {"prompt": "w10", "max_tokens": num_tokens, "stream": True, "ignore_eos": True}
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
                for line in response.iter_lines():
                    lines.append(line)
                    begun.set()
        except httpx.HTTPError:
            lines.append("broken")

    thread = threading.Thread(target=read)
    thread.start()
    return thread, lines, begun


def test_serves_says_how_and_ends_what_runs_at_ctrl_c(folder: Path) -> None:
    with running(folder, "--cache-bytes", "50MB", "--served-name", "mine") as server:
        shown = "".join(server.lines)
        assert "keepwarm serves mine at http://127.0.0.1:" in shown
        assert "4 rows" in shown
        assert "50.0 MB" in shown
        assert "temperature 0.5 (the model names no sampling of its own)" in shown
        assert f"curl {server.url}/v1/chat/completions" in shown
        body = {"messages": [{"role": "user", "content": "w10 w11"}], "max_tokens": 3}
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()
        assert answer["model"] == "mine"
        thread, lines, begun = long_stream(server.url, 300)
        assert begun.wait(60)
        server.interrupt()
        thread.join(60)
        assert lines[-2:] == ["data: [DONE]", ""]
        assert server.status() == 0


def test_deadline_ends_what_still_runs_with_an_error(folder: Path) -> None:
    with running(folder, "--shutdown-s", "0.2") as server:
        thread, lines, begun = long_stream(server.url, 4000)
        assert begun.wait(60)
        server.interrupt()
        thread.join(60)
        assert "stopping" in [line for line in lines if line.startswith("data: ")][-1]
        assert server.status() == 0


def test_second_ctrl_c_quits_at_once(folder: Path) -> None:
    with running(folder) as server:
        thread, lines, begun = long_stream(server.url, 4000)
        assert begun.wait(60)
        server.interrupt()
        assert server.popen.stdout is not None
        assert any("Ctrl-C again" in line for line in server.popen.stdout)
        server.interrupt()
        assert server.status() == 130
        thread.join(60)
        assert "data: [DONE]" not in lines


def test_sigterm_answers_new_connections_for_a_while(folder: Path) -> None:
    with running(folder, "--drain-s", "3") as server:
        thread, lines, begun = long_stream(server.url, 300)
        assert begun.wait(60)
        server.popen.send_signal(signal.SIGTERM)
        assert server.popen.stdout is not None
        assert any("stopping" in line for line in server.popen.stdout)
        # Each on a connection of its own, as a router's are that has not heard of it.
        for path in ("/health", "/v1/chat/completions"):
            body = {"messages": [{"role": "user", "content": "w10"}]}
            method = "GET" if path == "/health" else "POST"
            answer = httpx.request(method, f"{server.url}{path}", json=body, timeout=60)
            assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) > 0
        thread.join(60)
        assert "data: [DONE]" in lines
        assert server.status() == 0


def test_half_a_body_holds_nothing_up(folder: Path) -> None:
    with running(folder, "--shutdown-s", "50") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as half:
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            kind = "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n"
            half.sendall(f"{head}{kind}{{".encode())
            assert httpx.get(f"{server.url}/health").status_code == 200
            server.interrupt()
            assert server.popen.wait(30) == 0  # it would take 55 s
            assert b" 503 " in half.recv(1000)


def test_settings_reach_the_engine_and_its_cache(folder: Path) -> None:
    config = Config(
        model=str(folder),
        exact=True,
        cache_bytes=Percent(10),
        min_span=32,
        prefill_step=64,
        policy="lru",
        kv_bits=8,
        kv_group_size=32,
        context_len=500,
    )
    with make_engine(config) as engine:
        assert engine.context_len == 500
        exact, placement, caches = engine.call(
            lambda cache: (
                cache.exact,
                cache.placement,
                [type(layer).__name__ for layer in cache.fresh().caches],
            )
        )
        status = engine.status()
    assert exact
    assert placement == Placement(min_span=32, prefill_step=64)
    assert set(caches) == {"QuantizedKVCache"}
    assert status.cache is not None
    assert 0 < status.cache.budget_bytes < status.memory_bytes


def told(capsys: Any, *argv: str) -> str:
    """The one line of an error."""
    assert main(argv) != 0
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("keepwarm: ")
    return str(lines[0])


def test_missing_model_is_one_line(capsys: Any) -> None:
    assert "no model folder" in told(capsys, "serve", "/no/such/model")


def test_variable_that_is_no_setting_does_not_stop_the_start(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KEEPWARM_SERVICE_HOST", "10.0.0.1")
    assert main(["serve", str(tmp_path)]) == 2
    ignored, refused = capsys.readouterr().err.strip().splitlines()
    assert "KEEPWARM_SERVICE_HOST is ignored" in ignored
    assert "config.json" in refused


def test_package_without_its_model_is_one_line(
    capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(names, "files", lambda _: tmp_path)
    assert "no built-in model; name one" in told(capsys, "serve", "--port", "0")


def test_built_in_model_is_served_when_none_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save_small_model(tmp_path / "sprout")
    monkeypatch.setattr(names, "files", lambda _: tmp_path)
    config = read_config({}, {})
    with make_engine(config) as engine:
        assert engine.tokenizer.encode("w10") == [10]
        with listening(engine, config) as url:
            models = httpx.get(f"{url}/v1/models").json()["data"]
    assert [model["id"] for model in models] == ["sprout"]


def test_wrong_setting_is_one_line(capsys: Any, folder: Path) -> None:
    assert "--temp" in told(capsys, "serve", str(folder), "--temp", "hot")
    assert "max_queue" in told(capsys, "serve", str(folder), "--max-queue", "0")


def test_port_that_is_taken_is_one_line(capsys: Any, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "is in use" in told(capsys, "serve", str(folder), "--port", port)


def test_model_that_cannot_be_loaded_is_one_line(capsys: Any, tmp_path: Path) -> None:
    put_model(tmp_path / "model", config='{"model_type": "nobody-knows"}')
    tmp_path /= "model"
    assert "cannot load" in told(capsys, "serve", str(tmp_path), "--port", "0")


def test_model_without_a_template_is_served_and_says_what_helps(
    tmp_path: Path, capsys: Any
) -> None:
    folder = save_small_model(tmp_path / "mute")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    template = settings.pop("chat_template")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "mine.jinja").write_text(template)
    for file, helps in ((None, False), (str(tmp_path / "mine.jinja"), True)):
        config = Config(model=str(folder), chat_template=file)
        with make_engine(config) as engine:
            trouble = trouble_with(engine.tokenizer)
            said = ready_words(config, 1, engine.status(), None, trouble)
        assert ("has no chat template; --chat-template FILE" in said) != helps
        assert ("/v1/chat/completions" in said) == helps


def test_version_and_help_are_told(capsys: Any) -> None:
    for argv, words in (
        (["--version"], "keepwarm "),
        (["serve", "--help"], "KEEPWARM_MAX_QUEUE"),
    ):
        with pytest.raises(SystemExit) as end:
            main(argv)
        assert end.value.code == 0
        assert words in capsys.readouterr().out
