"""SDKs and frameworks, unmodified and in their default modes, work through a server of ours: `make
clients`. Each program of `sdks/` runs in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.rig import THINKS, Rig, Say, rig
from tests.prompt.tokenizers_for_tests import SHARED_TEMPLATES

FOLDER = Path(__file__).parents[2] / ".clients"
PYTHON = FOLDER / "python" / "bin" / "python"
PROGRAMS = Path(__file__).parent / "sdks"
NAMES = sorted(path.name for path in PROGRAMS.glob("*_sdk.*"))

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not PYTHON.exists(), reason="make clients installs the SDKs"),
    pytest.mark.skipif(not SHARED_TEMPLATES.is_dir(), reason="the shared templates are not here"),
]

# One for each syntax of calls that has a grammar.
MODELS = {
    "Qwen-Qwen3-0.6B": "llama",
    "Qwen3.5-4B": "qwen3_5",
    "openai-gpt-oss-120b": "gpt_oss",
}
OSLO = {"city": "Oslo"}
# Prompts of these programs are short: a result and the markup around it are a good part of them.
LEAST_SHARE = 0.5


def script(prompt: str) -> Say:
    """By the last words that are known; what must fit a schema is the model's own."""
    replies = {
        "Say hello, please.": Say("Hello there."),
        "How is the weather?": Say(calls=(("get_weather", OSLO),)),
        "Weather and time, please.": Say(calls=(("get_weather", OSLO), ("get_time", OSLO))),
        "Think first.": Say("Thought.", thought="Hm."),
        "Which city is it?": THINKS,
        "Snow.": Say("It snows in Oslo."),
        "Noon.": Say("Snow at noon."),
    }
    return replies[max(replies, key=prompt.rfind)]


@pytest.fixture(scope="module", params=MODELS)
def running(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(request.param, MODELS[request.param]) as found:
        found.script = script
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_default_modes_work(running: Rig, name: str, request: pytest.FixtureRequest) -> None:
    running.begin()
    told = ran(PROGRAMS / name, running.url)
    if "gpt-oss" in request.node.name:
        # Its template writes one call in a message.
        told = {check: how for check, how in told.items() if "parallel" not in check}
    assert {check: how for check, how in told.items() if how != "ok"} == {}
    show_share(running, request)
    broken = [(e.path, e.status, e.told) for e in running.exchanges if e.status >= 500]
    assert broken == []


def show_share(running: Rig, request: pytest.FixtureRequest) -> None:
    """Prints how much of its prompt the second call of a tool loop found in the cache."""
    shares = []
    for exchange in running.turns:
        if "Snow." in json.dumps(exchange.asked) and b'"keepwarm":' in exchange.told:
            cached, read = (exchange.keepwarm[f"{part}_tokens"] for part in ("cached", "prefilled"))
            shares.append(cached / (cached + read))
    if shares:
        print(f"{request.node.name}: {min(shares):.0%} to {max(shares):.0%} cached")
        assert min(shares) > LEAST_SHARE


def ran(program: Path, url: str) -> dict[str, str]:
    """What a program says of each of its checks."""
    if program.suffix == ".mjs":
        # Node looks for packages beside the file.
        copy = FOLDER / program.name
        copy.write_text(program.read_text(encoding="utf-8"), encoding="utf-8")
        command = ["node", str(copy), url]
    else:
        command = [str(PYTHON), str(program), url]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, str] = json.loads(done.stdout.strip().splitlines()[-1])
    return told
