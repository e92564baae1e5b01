"""A long conversation that comes again is not rendered, searched and encoded again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.follow_up import follow_up
from keepwarm.prompt.memory import Latest
from keepwarm.prompt.render import _Rendering, render_chat
from keepwarm.prompt.sentinel import Locator
from tests.prompt.conversations import assistant, set_day, system, user
from tests.prompt.tokenizers_for_tests import EOS, OWN_TEMPLATES, make_tokenizer

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
    num_first = len(num_searches)
    again, third = (render_chat(tokenizer, [dict(m) for m in CHAT]) for _ in range(2))
    assert len(num_searches) == num_first
    assert is_same(first, again)
    for position in (len(first), 100, 200, len(first)):
        for prompt in (again, first, third):  # each for itself, whoever asks in between
            assert prompt.digest(position) == Prompt(first.tokens).digest(position)
    assert len({id(prompt._hasher) for prompt in (first, again, third)}) == 3


WITHOUT_PROMPT = PLAIN[: PLAIN.rindex("{%- if add_generation_prompt")]


@pytest.mark.parametrize(
    ("template", "change"),
    [
        (PLAIN, {"template_kwargs": {"enable_thinking": False}}),
        (PLAIN, {"namespace": "another"}),
        (WITHOUT_PROMPT, {"add_generation_prompt": False}),
    ],
    ids=["kwargs", "namespace", "no generation prompt"],
)
def test_same_text_asked_for_otherwise_is_rendered(
    num_searches: list[int], template: str, change: dict[str, Any]
) -> None:
    tokenizer = make_tokenizer(template)
    first = render_chat(tokenizer, CHAT)
    num_first = len(num_searches)
    prompt = render_chat(tokenizer, CHAT, **change)
    assert prompt.tokens.tolist() == first.tokens.tolist()
    assert len(num_searches) > num_first
    assert is_same(prompt, render_chat(make_tokenizer(template), CHAT, **change))


def test_template_that_writes_another_date_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = make_tokenizer("{{ strftime_now('%d') }}" + PLAIN)
    firsts = []
    for day in (1, 2):
        set_day(monkeypatch, day)
        firsts.append(tokenizer.decode(render_chat(tokenizer, CHAT).tokens)[:2])
    assert firsts == ["01", "02"]


def test_prompt_whose_boundaries_were_not_found_is_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = make_tokenizer(PLAIN)
    with monkeypatch.context() as fault:
        fault.setattr(_Rendering, "_boundaries", lambda *_: 1 / 0)
        assert not render_chat(tokenizer, CHAT).boundaries
    assert render_chat(tokenizer, CHAT).boundaries


def test_tokenizer_that_encodes_chats_in_its_own_way_is_asked_each_time() -> None:
    class Own(PreTrainedTokenizerFast):  # type: ignore[misc]
        more: tuple[int, ...] = ()

        def apply_chat_template(self, *args: Any, tokenize: bool = True, **kwargs: Any) -> Any:
            text = super().apply_chat_template(*args, tokenize=False, **kwargs)
            return [*self.encode(text), *self.more] if tokenize else text

    backend = make_tokenizer(PLAIN).backend_tokenizer
    tokenizer = Own(tokenizer_object=backend, chat_template=PLAIN, eos_token=EOS)
    first = render_chat(tokenizer, CHAT)
    assert first.boundaries
    Own.more = (7,)
    assert render_chat(tokenizer, CHAT).tokens.tolist() == [*first.tokens.tolist(), 7]


def test_message_that_cannot_be_compared_is_rendered() -> None:
    tokenizer = make_tokenizer(PLAIN)
    for _ in range(2):
        chat = [*CHAT[:-1], {**CHAT[-1], "image": np.zeros(3)}]
        assert is_same(render_chat(tokenizer, chat), render_chat(tokenizer, CHAT))


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


def test_next_turns_that_were_made_up_push_none_out(num_searches: list[int]) -> None:
    tokenizer = make_tokenizer(PLAIN)
    chats = [[user(f"{LONG} {i}")] for i in range(Latest.MAX_ENTRIES)]
    for chat in chats:
        render_chat(tokenizer, chat)
        assert follow_up(tokenizer, chat, assistant("Sunny.")) is not None
    num_first = len(num_searches)
    for chat in chats:
        render_chat(tokenizer, chat)
    assert len(num_searches) == num_first


def test_only_the_last_few_long_ones_are_kept() -> None:
    latest = Latest()
    long, prompt = "a" * Latest.MIN_CHARS, Prompt([1, 2, 3])
    too_long = "a" * (Latest.MAX_CHARS + 1)
    for text, origin in (("short", 0), (too_long, 0), (long, [{"thought": [too_long]}])):
        latest.put(text, origin, prompt)
        assert latest.get(text, origin) is None
    for i in range(Latest.MAX_ENTRIES + 1):
        for _ in range(3):
            latest.put(long, i, prompt)
        assert latest.get(long, 0)  # which is used all the time
    assert [i for i in range(Latest.MAX_ENTRIES + 1) if not latest.get(long, i)] == [1]
