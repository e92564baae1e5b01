"""The language of models that have not learned one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.bench import words

TOKENIZER = words.tokenizer()


def test_each_word_is_one_token_behind_a_blank_or_not() -> None:
    found = {
        tuple(words.ids(TOKENIZER, blank + words.word(i)))
        for i in range(words.NUM_WORDS)
        for blank in ("", " ")
    }
    assert {len(ids) for ids in found} == {1}
    assert len(found) == 2 * words.NUM_WORDS


def test_every_id_is_in_the_vocabulary_of_the_smallest_shape() -> None:
    assert max(TOKENIZER.get_vocab().values()) < 1024


@pytest.mark.parametrize("num_tokens", [1, 2, 700])
def test_text_has_as_many_tokens_as_asked_for(num_tokens: int) -> None:
    assert len(words.ids(TOKENIZER, words.text(num_tokens, "a"))) == num_tokens


def test_text_is_the_same_for_the_same_seed_only() -> None:
    assert words.text(50, "a") == words.text(50, "a")
    assert words.text(50, "a") != words.text(50, "b")


PIECES = ["w1", " w359", "\n", "\n\n", ".\n", "<think>", "</tool_call>", words.CALL, "{", "  ", "é"]


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=12))
def test_text_comes_back_from_its_tokens_as_it_was(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert TOKENIZER.decode(words.ids(TOKENIZER, text)) == text


def rendered(**template_args: Any) -> str:
    messages = [
        {"role": "user", "content": "w1"},
        {"role": "assistant", "content": "w2", "reasoning_content": "w3"},
        {"role": "user", "content": "w4"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "w5"},
    ]
    text: str = TOKENIZER.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False, **template_args
    )
    return text


CALL = {"type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}


def test_template_strips_thoughts_of_earlier_turns() -> None:
    assert "w3" not in rendered()
    assert "w2" in rendered()


def test_template_can_leave_out_empty_thoughts() -> None:
    block = "<think>\n\n</think>\n\n"
    assert rendered().count(block) == 1
    assert block not in rendered(omit_empty_thoughts=True)
    assert rendered().replace(block, "") == rendered(omit_empty_thoughts=True)
