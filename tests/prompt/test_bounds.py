"""Prompts that cannot fit, and prompts that nobody waits for any more, end early."""

from __future__ import annotations

from typing import Any

import pytest

from keepwarm.errors import Abandoned, TooLong
from keepwarm.prompt import plain, render
from keepwarm.prompt.bounds import Bounds
from keepwarm.prompt.plain import render_text
from keepwarm.prompt.render import render_chat
from tests.prompt.conversations import assistant, user
from tests.prompt.tokenizers_for_tests import own

WORDS = "The user asks a question. " * 100_000


def test_prompt_that_cannot_fit_is_never_encoded_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (render, plain):
        monkeypatch.setattr(module, "encode", None)
    bounds = Bounds(1000)
    for make in (
        lambda: render_chat(own("plain"), [user(WORDS)], bounds=bounds),
        lambda: render_chat(own("plain"), [user("Hi"), assistant("a")] * 4000, bounds=bounds),
        lambda: render_text(own("plain"), WORDS, bounds=bounds),
    ):
        with pytest.raises(TooLong, match="more than") as refusal:
            make()
        assert refusal.value.context_len == 1000
        # One piece was enough to see it.
        assert 1000 < refusal.value.prompt_len < 200_000


@pytest.mark.parametrize("slack", [0, 1, 1000])
def test_long_words_that_fit_are_rendered(slack: int) -> None:
    """More than four characters a token, so that the tokens are counted first."""
    messages = [user(" assistant question" * 20_000)]
    whole = render_chat(own("plain"), messages)
    limit = len(whole) + 1 + slack
    assert len(messages[0]["content"]) > 4 * limit
    bounded = render_chat(own("plain"), messages, bounds=Bounds(limit))
    assert bounded.tokens.tolist() == whole.tokens.tolist()


def test_work_ends_when_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = own("plain")
    rendered: list[Any] = []
    applied = tokenizer.apply_chat_template

    def apply(*given: Any, **options: Any) -> Any:
        rendered.append(given)
        return applied(*given, **options)

    monkeypatch.setattr(tokenizer, "apply_chat_template", apply)
    with pytest.raises(Abandoned):
        render_chat(tokenizer, [user("Hi")], bounds=Bounds(is_wanted=lambda: False))
    assert rendered == []
    with pytest.raises(Abandoned):
        render_chat(tokenizer, [user("Hi")], bounds=Bounds(is_wanted=lambda: len(rendered) < 1))
    assert len(rendered) == 1
    looks = iter([True] * 3)  # the template, before the tokens are counted, and one piece
    with pytest.raises(Abandoned):
        render_chat(tokenizer, [user(WORDS)], bounds=Bounds(10**6, lambda: next(looks, False)))
