"""A long conversation that comes again is not rendered, searched and encoded again."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.memory import Latest
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.sentinel import Locator
from tests.prompt.conversations import TOOLS, assistant, system, user
from tests.prompt.tokenizers_for_tests import OWN_TEMPLATES, make_tokenizer

LONG = "What is the weather in Paris today?" * (Latest.MIN_CHARS // 30)
CHAT = [system("Be kind."), user(LONG), assistant("Sunny."), user("And tomorrow?")]
PLAIN = (OWN_TEMPLATES / "plain.jinja").read_text(encoding="utf-8")


@pytest.fixture
def num_searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each conversation had whose messages were looked for."""
    made: list[int] = []
    plain = Locator.locate

    def noted(self: Locator) -> Any:
        made.append(len(self._messages))
        return plain(self)

    monkeypatch.setattr(Locator, "locate", noted)
    return made


def is_same(one: Prompt, other: Prompt) -> bool:
    return one.tokens.tolist() == other.tokens.tolist() and one.boundaries == other.boundaries


def test_same_conversation_again_is_the_same_prompt(num_searches: list[int]) -> None:
    tokenizer = make_tokenizer(PLAIN)
    first = render_chat(tokenizer, CHAT)
    digest = first.digest(len(first))
    num_first = len(num_searches)
    again = render_chat(tokenizer, [dict(message) for message in CHAT])
    assert len(num_searches) == num_first
    assert again is not first
    assert is_same(first, again)
    for position in (len(first), 100, 200, len(first)):
        assert again.digest(position) == Prompt(first.tokens).digest(position)
    assert first.digest(len(first)) == digest


@pytest.mark.parametrize(
    "change",
    [
        {"messages": [*CHAT[:-1], user("And tomorrow")]},
        {"messages": CHAT[:-2]},
        {"tools": TOOLS},
        {"add_generation_prompt": False},
        {"template_kwargs": {"enable_thinking": False}},
        {"namespace": "another"},
    ],
    ids=["other words", "shorter", "tools", "no generation prompt", "kwargs", "namespace"],
)
def test_another_conversation_is_rendered(num_searches: list[int], change: dict[str, Any]) -> None:
    tokenizer, asked = make_tokenizer(PLAIN), {"messages": CHAT, **change}
    render_chat(tokenizer, CHAT)
    num_first = len(num_searches)
    prompt = render_chat(tokenizer, **asked)
    assert len(num_searches) > num_first
    assert is_same(prompt, render_chat(make_tokenizer(PLAIN), **asked))


def test_same_text_of_other_messages_has_its_own_boundaries() -> None:
    tokenizer = make_tokenizer(PLAIN)
    apart = [user(LONG), assistant("Sunny."), user("And tomorrow?")]
    text = tokenizer.apply_chat_template(apart, tokenize=False)
    start = text.index(LONG)
    end = text.index("And tomorrow?") + len("And tomorrow?")
    together = [user(text[start:end])]
    assert tokenizer.apply_chat_template(together, tokenize=False) == text
    one, other = (render_chat(tokenizer, messages) for messages in (apart, together))
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.boundaries != other.boundaries


def test_token_that_is_added_later_is_seen() -> None:
    tokenizer = make_tokenizer(PLAIN)
    before = render_chat(tokenizer, CHAT)
    tokenizer.add_tokens(["weather in Paris"])
    after = render_chat(tokenizer, CHAT)
    assert len(after) < len(before)
    assert after.tokens.tolist() == tokenizer.apply_chat_template(
        CHAT, add_generation_prompt=True, return_dict=False
    )


def test_only_the_last_few_long_ones_are_kept() -> None:
    latest = Latest()
    long, prompt = "a" * Latest.MIN_CHARS, Prompt([1, 2, 3])
    latest.put("short", 0, prompt)
    latest.put("a" * (Latest.MAX_CHARS + 1), 0, prompt)
    assert latest.get("short", 0) is None
    assert latest.get("a" * (Latest.MAX_CHARS + 1), 0) is None
    for i in range(Latest.MAX_ENTRIES + 1):
        latest.put(long, i, prompt)
    assert latest.get(long, 0) is None
    assert all(latest.get(long, i) for i in range(1, Latest.MAX_ENTRIES + 1))
