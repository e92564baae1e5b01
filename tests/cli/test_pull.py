"""`keepwarm pull`, and a server that downloads first: processes of their own, as people run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.test_serve import Process
from tests.compat.serving import save_small_model
from tests.model.small_hub import Hub, small_hub

NAME = "mlx-community/small"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with small_hub() as made:
        made.repositories[NAME] = save_small_model(tmp_path / "small")
        yield made


def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    more = {"HF_ENDPOINT": hub.url, "HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
    unset = ("HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE")
    env = {name: value for name, value in os.environ.items() if name not in unset}
    return {**env, **more, "MLX_DISABLE_COMPILE": "1"}


def begin(hub: Hub, tmp_path: Path, *argv: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "keepwarm", *argv],
        env=environment(hub, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parents[2] / "src",
    )


def told(popen: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = popen.communicate(timeout=60)
    return popen.returncode, output


def test_ctrl_c_ends_a_download_at_once_and_whole_files_stay(hub: Hub, tmp_path: Path) -> None:
    hub.slow_file = "model.safetensors"
    popen = begin(hub, tmp_path, "pull", NAME)
    assert hub.is_in_the_middle.wait(60)
    popen.send_signal(signal.SIGINT)
    status, output = told(popen)
    assert status == 130
    assert "the same command goes on with the rest" in output
    assert "Traceback" not in output
    assert not list(tmp_path.rglob("*.incomplete"))
    assert list(tmp_path.rglob("snapshots/*/config.json"))


def test_serve_downloads_what_is_not_here(hub: Hub, tmp_path: Path) -> None:
    with begin(hub, tmp_path, "serve", NAME, "--port", "0") as popen:
        try:
            server = Process(popen)
            models = httpx.get(f"{server.url}/v1/models").json()["data"]
        finally:
            popen.kill()
    assert "will be downloaded" in "".join(server.lines)
    assert models[0]["id"] == NAME
