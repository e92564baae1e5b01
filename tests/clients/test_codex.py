"""Codex, unmodified, works through a server of ours: `make clients`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepwarm.launch.endpoint import Endpoint
from keepwarm.prompt.boundaries import shared_len
from tests.clients import codex
from tests.clients.codex import Ran, Session
from tests.clients.rig import CONTEXT_LEN, MODEL_NAME, Rig, Say, rig
from tests.prompt.tokenizers_for_tests import SHARED_TEMPLATES

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(codex.program() is None, reason="make clients installs Codex"),
    pytest.mark.skipif(not SHARED_TEMPLATES.is_dir(), reason="the shared templates are not here"),
]

# Each with a model whose layers remember as those of the real one do.
MODELS = {
    "Qwen-Qwen3-0.6B": "llama",
    "Qwen3.5-4B": "qwen3_5",
    "openai-gpt-oss-120b": "gpt_oss",
}
# A user's own configuration: launch must win against it, and its MCP server must be there.
CONFIG = f"""
model = "gpt-6-sol"
model_provider = "elsewhere"
web_search = "live"
[model_providers.elsewhere]
name = "elsewhere"
base_url = "http://127.0.0.1:9/v1"
wire_api = "responses"
[mcp_servers.words]
command = {str(sys.executable)!r}
args = [{str(Path(__file__).with_name("look.py"))!r}]
"""
PATCH = """*** Begin Patch
*** Update File: notes.txt
@@
 one
-two
+three
*** End Patch
"""


@pytest.fixture(scope="module", params=MODELS)
def running(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(request.param, MODELS[request.param]) as found:
        yield found


@pytest.fixture
def session(running: Rig, tmp_path: Path) -> Session:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home / ".codex", project):
        folder.mkdir(parents=True)
    (home / ".codex" / "config.toml").write_text(CONFIG)
    running.begin()
    return Session(home, project, Endpoint(running.url, MODEL_NAME, CONTEXT_LEN))


def test_session_calls_tools_patches_and_answers_warm(running: Rig, session: Session) -> None:
    file = session.project / "notes.txt"
    file.write_text("one\ntwo\n")
    running.script = patches
    ran = session.run("Please change two to three.")
    check(running, ran)
    assert file.read_text() == "one\nthree\n"
    did = [item for item in ran.items if item["type"] not in ("reasoning", "agent_message")]
    assert [item["type"] for item in did] == [
        "command_execution", "mcp_tool_call", "file_change", "command_execution",
    ]  # fmt: skip
    assert (did[1]["server"], did[1]["tool"]) == ("words", "look")
    assert all(item["status"] == "completed" for item in did)
    assert ran.items[-1]["text"] == "Done: it says three."
    check_warm(running)


# What the model says

STEPS = {
    "": Say("", "First the file.", (("exec_command", {"cmd": "cat notes.txt"}),)),
    "one\ntwo": Say("", "A word.", (("mcp__words__look", {"word": "knot"}),)),
    "means a small bird": Say("Now the change.", calls=(("apply_patch", {"input": PATCH}),)),
    "Success. Updated": Say("And look.", calls=(("exec_command", {"cmd": "cat notes.txt"}),)),
    "one\nthree": Say("Done: it says three."),
}


def patches(prompt: str) -> Say:
    """Looks, asks the MCP server, patches and looks again; the next step by the last result."""
    text = prompt.replace("\\n", "\n")  # some templates write results as JSON
    return STEPS[max(STEPS, key=lambda mark: text.rfind(mark) if mark else 0)]


# What is looked at


def check(running: Rig, ran: Ran) -> None:
    """It ended well, and no request of it was refused."""
    refused = [(e.path, e.status, e.told) for e in running.exchanges if e.status >= 400]
    assert refused == []
    assert ran.status == 0, (ran.errors, ran.events)
    problems = [e for e in ran.events if e["type"] in ("error", "turn.failed")]
    assert problems == []


def check_warm(running: Rig) -> None:
    """From its second call on a session reads the reply and what is new behind it, at most."""
    assert len(running.turns) == len(running.prompts) == len(STEPS)
    turns: Any = zip(running.prompts, running.prompts[1:], running.turns[1:])
    for before, prompt, turn in turns:
        new_len = len(prompt) - shared_len(before.tokens, prompt.tokens)
        assert turn.keepwarm["prefilled_tokens"] <= new_len, (turn.keepwarm, len(prompt))
