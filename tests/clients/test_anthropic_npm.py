"""The official npm SDK against a running server: `make clients` installs it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.claude import FOLDER
from tests.server.scripted import follow
from tests.server.serving import served
from tests.server.test_messages import write

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        not (FOLDER / "node_modules/@anthropic-ai/sdk").is_dir() or shutil.which("node") is None,
        reason="make clients installs the SDK; node runs it",
    ),
]


def test_sdk_parses_every_event_without_a_warning(tmp_path: Path) -> None:
    # Node looks for packages beside the script.
    script = tmp_path / "anthropic_sdk.mjs"
    script.write_text(Path(__file__).with_name("anthropic_sdk.mjs").read_text(encoding="utf-8"))
    (tmp_path / "node_modules").symlink_to(FOLDER.resolve() / "node_modules")
    with served(context_len=4096) as server:
        follow(server.engine, write)
        before = server.engine.status().counters.requests.get("cancelled", 0)
        done = subprocess.run(
            ["node", str(script), server.url],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "all is well\n"
        server.wait_for(
            lambda: server.engine.status().counters.requests.get("cancelled", 0) == before + 1
        )
