"""Claude Code, unmodified, works through a server of ours: `make clients`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from keepwarm.launch.endpoint import Endpoint
from keepwarm.prompt.boundaries import BoundaryKind, shared_len
from tests.clients import claude
from tests.clients.claude import Ran, Session
from tests.clients.rig import CONTEXT_LEN, MODEL_NAME, Rig, Say, rig
from tests.prompt.tokenizers_for_tests import SHARED_TEMPLATES

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(claude.program() is None, reason="make clients installs Claude Code"),
    pytest.mark.skipif(not SHARED_TEMPLATES.is_dir(), reason="the shared templates are not here"),
]

# Each with a model whose layers remember as those of the real one do.
MODELS = {
    "Qwen3.5-4B": "qwen3_5",
    "Qwen3-Coder": "llama",
    "openai-gpt-oss-120b": "gpt_oss",
}
TOOL = "mcp__words__look"
LOOK = {"command": sys.executable, "args": [str(Path(__file__).with_name("look.py"))]}
# A user's own settings, which go before the environment: launch must win against them.
HOSTILE = (
    '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "9"}}'
)
# Text behind the last result that no turn of ours explains: the client wants a summary.
_LATE_S = 320
_PROMPT_LEN = 16  # of what opens a reply: templates write it otherwise behind it
_SUMMARY_CHARS = 3000
_SUMMARY = "The files so far were read:"


@pytest.fixture(scope="module", params=MODELS)
def running(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(request.param, MODELS[request.param]) as found:
        yield found


@pytest.fixture
def session(running: Rig, tmp_path: Path) -> Session:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder in (home / ".claude", project):
        folder.mkdir(parents=True)
    (home / ".claude" / "settings.json").write_text(HOSTILE)
    running.begin()
    server = Endpoint(running.url, MODEL_NAME, CONTEXT_LEN)
    return Session(home, project, server, mcp={"words": LOOK})


def test_session_calls_tools_edits_and_answers_warm(running: Rig, session: Session) -> None:
    for _ in range(2):
        file = session.project / "notes.txt"
        file.write_text("one\ntwo\n")
        running.script = edits(str(file))
        ran = session.run("Please change two to three.")
        check(running, ran)
        assert file.read_text() == "one\nthree\n"
        assert ran.result["result"] == "Done: it says three."
        assert [use["name"] for use in uses(ran)] == ["Read", "ToolSearch", TOOL, "Edit", "Bash"]
        check_warm(running)
    # The same was asked twice: the second session read next to nothing.
    again = running.turns[6]
    assert again.keepwarm["cached_tokens"] > 0.95 * len(running.prompts[6])


def test_another_session_finds_its_tools_and_system_prompt(running: Rig, session: Session) -> None:
    running.script = lambda _: Say("Here I am.")
    for words in ("Are you there?", "And what is this folder called?"):
        check(running, session.run(words))
    first = running.prompts[-1]
    ends = [b.position for b in first.boundaries if b.kind is BoundaryKind.SYSTEM]
    assert running.turns[-1].keepwarm["cached_tokens"] >= max(ends) > 5000


def test_session_crosses_compaction(running: Rig, session: Session) -> None:
    files = [session.project / f"large{i}.txt" for i in range(3)]
    for i, file in enumerate(files):
        file.write_text("".join(f"line {n} of file {i}: nothing to see\n" for n in range(700)))
    running.script = reads([str(file) for file in files])
    ran = session.run("Please read all three files.")
    check(running, ran)
    assert ran.result["result"] == "I have read them."
    assert any(event.get("subtype") == "compact_boundary" for event in ran.events)
    lengths = [len(prompt) for prompt in running.prompts]
    assert max(lengths) < CONTEXT_LEN
    assert lengths[-1] < max(lengths)


def test_client_waits_for_a_prompt_longer_than_its_own_limit(
    running: Rig, session: Session, monkeypatch: pytest.MonkeyPatch, request: Any
) -> None:
    if "Coder" not in request.node.callspec.id:
        pytest.skip("once is enough: it takes more than five minutes")
    # It gives up a silent stream after 300 s, and takes no smaller number.
    monkeypatch.setattr("keepwarm.launch.claude._HOUR_MS", "10000")
    running.begin()

    def late(_: str) -> Say:
        Thread(target=lambda: running.engine.call(lambda _: time.sleep(_LATE_S))).start()
        time.sleep(0.5)  # the engine is busy before the request comes to it
        return Say("Here I am.")

    running.script = late
    ran = session.run("Are you there?", most_s=_LATE_S + 120)
    check(running, ran)
    assert ran.result["result"] == "Here I am."
    assert len(running.turns) == 1
    assert running.turns[0].told.count(b"event: ping") > 100


# What the model says


def edits(file: str) -> Any:
    """Reads a file, asks the MCP server, edits and looks; the next step by the last result."""
    steps = {
        "": Say("I read it.", "First the file.", (("Read", {"file_path": file}),)),
        "\ttwo\n": Say(
            "", "A word.", (("ToolSearch", {"query": f"select:{TOOL}", "max_results": 5}),)
        ),
        # The tool is not in the prompt before it is asked for, and then behind all that is cached.
        "From here on this tool can be called": Say("", calls=((TOOL, {"word": "knot"}),)),
        "means a small bird": Say(
            "Now the change.",
            calls=(("Edit", {"file_path": file, "old_string": "two", "new_string": "three"}),),
        ),
        "has been updated": Say(
            "And look.", calls=(("Bash", {"command": "cat notes.txt", "description": "Show"}),)
        ),
        "one\nthree": Say("Done: it says three."),
    }

    def script(prompt: str) -> Say:
        mark = max(steps, key=lambda mark: prompt.rfind(mark) if mark else 0)
        return steps[mark]

    return script


def reads(files: list[str]) -> Any:
    """Reads one file after another, and writes a summary when the client wants one."""

    def script(prompt: str) -> Say:
        last = prompt.rfind(": nothing to see")
        done = [file for i, file in enumerate(files) if f"of file {i}:" in prompt]
        if _SUMMARY not in prompt and last >= 0 and len(prompt) - last > _SUMMARY_CHARS:
            read = ", ".join(f"line 1 of file {i}:" for i in range(len(done)))
            return Say(f"<summary>{_SUMMARY} {read}.</summary>")
        left = files[len(done) :]
        return (
            Say("", calls=(("Read", {"file_path": left[0]}),)) if left else Say("I have read them.")
        )

    return script


# What is looked at


def check(running: Rig, ran: Ran) -> None:
    """It ended well, and no request of it was refused."""
    assert ran.status == 0, (ran.errors, ran.events[-3:])
    assert not ran.result["is_error"]
    words = [line for line in ran.errors.splitlines() if line.strip()]
    # Said of every model that is not Anthropic's.
    assert [line for line in words if "unrecognized_model" not in line] == []
    refused = [(e.path, e.status, e.told) for e in running.exchanges if e.status >= 400]
    assert refused == []
    window = next(iter(ran.result["modelUsage"].values()))["contextWindow"]
    assert window == CONTEXT_LEN


def check_warm(running: Rig) -> None:
    """From its second call on a session reads the reply and what is new behind it, at most."""
    prompts, turns = running.prompts[-6:], running.turns[-6:]
    for before, prompt, turn in zip(prompts, prompts[1:], turns[1:]):
        new_len = len(prompt) - shared_len(before.tokens, prompt.tokens)
        assert turn.keepwarm["prefilled_tokens"] <= new_len + _PROMPT_LEN, (
            turn.keepwarm,
            len(prompt),
        )


def uses(ran: Ran) -> list[dict[str, Any]]:
    return [
        block
        for event in ran.events
        if event["type"] == "assistant"
        for block in event["message"]["content"]
        if block["type"] == "tool_use"
    ]
