"""A conversation in the shape of Claude Code's: the same structure and changing fields, own words,
about a fifth of the size. What the real client gets is tried by `make clients`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from keepwarm.prompt.boundaries import BoundaryKind, Prompt, shared_len
from tests.server.scripted import follow
from tests.server.serving import Served, served

WORDS = [
    "read",
    "write",
    "file",
    "line",
    "test",
    "build",
    "change",
    "keep",
    "warm",
    "prompt",
    "cache",
    "token",
    "state",
    "tree",
    "find",
    "run",
]


def text(num_words: int, seed: int) -> str:
    """Words of no meaning, in paragraphs."""
    draw = random.Random(seed)
    paragraphs = (" ".join(draw.choices(WORDS, k=12)) for _ in range(num_words // 12))
    return ".\n".join(paragraphs)


def tool(name: str, seed: int, **more: Any) -> dict[str, Any]:
    properties = {word: {"type": "string", "description": text(12, seed)} for word in WORDS[:3]}
    schema = {"type": "object", "properties": properties, "required": ["read"]}
    return {"name": name, "description": text(36, seed), "input_schema": schema, **more}


TOOLS = [tool(name, i) for i, name in enumerate(("Agent", "Bash", "Edit", "Find", "Read", "Write"))]
LATE = tool("mcp__birds__name", 99, defer_loading=True)
MARK = {"cache_control": {"type": "ephemeral"}}


def block(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


class Agent:
    """A client that keeps the conversation and sends all of it, its marks elsewhere each time."""

    def __init__(self, server: Served, session: int, question: str) -> None:
        self._server, self._session = server, session
        self.messages: list[dict[str, Any]] = [
            {
                "role": "user",
                "content": [
                    block(f"<reminder>\n{text(24, 7)}\n</reminder>"),
                    block(question, **MARK),
                ],
            },
            # Its surroundings come as a message of the system behind the question.
            {"role": "system", "content": f"# Surroundings\n{text(120, 8)}\nsession {session}"},
        ]

    def ask(self) -> dict[str, Any]:
        """One request, and the reply it gave."""
        head = block(f"x-anthropic-billing-header: cc_version=1.{self._session}; id={id(self)};")
        body = {
            "model": "any",
            "max_tokens": 400,
            "system": [head, block("You help."), block(text(240, 9), **MARK)],
            "messages": self._marked(),
            "tools": [*TOOLS, LATE],
            "metadata": {"user_id": f'{{"session_id": "{self._session}"}}'},
            "thinking": {"type": "adaptive", "display": "omitted"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        }
        response = self._server.post("/v1/messages?beta=true", body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        self.messages.append({"role": "assistant", "content": answer["content"]})
        return answer

    def tell(self, call: dict[str, Any], content: Any) -> None:
        """The result of a call."""
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": content}
        self.messages.append({"role": "user", "content": [result]})

    def _marked(self) -> list[dict[str, Any]]:
        """A mark on the last message, where the one before has none any more."""
        *earlier, last = self.messages
        if isinstance(last["content"], str):
            return [*earlier, {**last, "content": [block(last["content"], **MARK)]}]
        *blocks, end = last["content"]
        return [*earlier, {**last, "content": [*blocks, {**end, **MARK}]}]


def call(name: str, read: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"read": "{read}"}}}}\n</tool_call>'


REPLIES = [
    f"<think>\nFirst the file.\n</think>\n\nI read it.\n{call('Read', 'notes.txt')}",
    f"<think>\nA bird.\n</think>\n\n{call('Find', 'birds')}",
    call("mcp__birds__name", "knot"),
    f"Both.\n{call('Edit', 'a')}\n{call('Bash', 'b')}",
    "Done.",
]


@pytest.fixture
def prompts() -> list[Prompt]:
    return []


@pytest.fixture
def server(prompts: list[Prompt]) -> Iterator[Served]:
    def write(prompt: Prompt) -> str:
        prompts.append(prompt)
        return REPLIES[(len(prompts) - 1) % len(REPLIES)]

    with served(context_len=32_768) as running:
        follow(running.engine, write)
        yield running
        running.engine.call(lambda cache: cache.check())


def play(agent: Agent) -> list[dict[str, Any]]:
    """A session: a file, a tool that is found, its result, two calls at once, the end."""
    results: list[Any] = [
        text(60, 20),
        [{"type": "tool_reference", "tool_name": "mcp__birds__name"}],
        [block("A knot is a bird.")],
        "changed",
    ]
    answers = []
    for result in results:
        answers.append(agent.ask())
        calls = [block for block in answers[-1]["content"] if block["type"] == "tool_use"]
        assert calls, answers[-1]
        agent.tell(calls[0], result)
        for other in calls[1:]:
            more = {
                "type": "tool_result",
                "tool_use_id": other["id"],
                "content": "no",
                "is_error": True,
            }
            agent.messages[-1]["content"].append(more)
    return [*answers, agent.ask()]


def test_agent_is_warm_from_its_second_call_on(server: Served, prompts: list[Prompt]) -> None:
    answers = play(Agent(server, 1, "Please change the notes."))
    assert answers[-1]["stop_reason"] == "end_turn"
    assert answers[0]["keepwarm"]["hygiene"] == ["billing_header"]
    for before, prompt, answer in zip(prompts, prompts[1:], answers[1:]):
        # At most the reply and the result behind it.
        new_len = len(prompt) - shared_len(before.tokens, prompt.tokens)
        assert answer["keepwarm"]["prefilled_tokens"] <= new_len < len(prompt) / 4


def test_another_session_finds_tools_and_system_prompt(
    server: Served, prompts: list[Prompt]
) -> None:
    play(Agent(server, 1, "Please change the notes."))
    prompts.clear()
    answers = play(Agent(server, 2, "What is this about?"))
    ends = [b.position for b in prompts[0].boundaries if b.kind is BoundaryKind.SYSTEM]
    assert answers[0]["keepwarm"]["cached_tokens"] >= max(ends)
    assert max(ends) > len(prompts[0]) / 2


def test_the_same_again_reads_nothing_anew(server: Served, prompts: list[Prompt]) -> None:
    play(Agent(server, 1, "Please change the notes."))
    agent = Agent(server, 1, "Please change the notes.")
    prompts.clear()
    assert agent.ask()["keepwarm"]["prefilled_tokens"] <= 1


def test_deferred_tool_stands_where_it_was_found(server: Served, prompts: list[Prompt]) -> None:
    play(Agent(server, 1, "Please change the notes."))
    tokenizer: Any = server.engine.tokenizer
    first, second, third, *_ = [tokenizer.decode(prompt.tokens.tolist()) for prompt in prompts]
    assert "mcp__birds__name" not in first + second
    assert third.startswith(second[: len(second) - 200])
    assert third.index("mcp__birds__name") > len(second) - 200
