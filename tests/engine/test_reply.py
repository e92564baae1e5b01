"""The text of a reply: nothing lost, nothing of a stop text shown, whatever the pieces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.tokenizer_utils import (
    BPEStreamingDetokenizer,
    NaiveStreamingDetokenizer,
    SPMStreamingDetokenizer,
    TokenizerWrapper,
)

from keepwarm.engine.reply import ReplyText, behind_text
from tests.prompt.tokenizers_for_tests import make_sentencepiece, make_tokenizer


class Pieces:
    """A detokenizer whose tokens are the indices of given texts."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts
        self.last_segment = ""

    def add_token(self, token: int) -> None:
        self.last_segment = self._texts[token]

    def finalize(self) -> None:
        self.last_segment = ""


TEXTS = st.lists(st.text("ab<", max_size=4), max_size=12)
STOPS = st.lists(st.text("ab<", min_size=1, max_size=3), max_size=3)


@given(TEXTS, STOPS)
def test_text_ends_before_the_first_stop_text(texts: list[str], stops: list[str]) -> None:
    reply, given_out = ReplyText(Pieces(texts), stops), ""
    for token in range(len(texts)):
        given_out += reply.push(token)
        if reply.is_stopped:
            break
    given_out += reply.end()
    upto, found = "", None
    for text in texts:  # what a reader of whole pieces would do
        upto += text
        places = [upto.find(stop) for stop in stops if stop in upto]
        if places:
            found = min(places)
            break
    assert given_out == reply.text == (upto if found is None else upto[:found])
    assert reply.is_stopped == (found is not None)


@given(TEXTS)
def test_without_stop_texts_nothing_is_held_back(texts: list[str]) -> None:
    reply = ReplyText(Pieces(texts))
    assert [reply.push(token) for token in range(len(texts))] == texts


@pytest.mark.parametrize(
    ("make", "kind", "written"),
    [
        (make_tokenizer, BPEStreamingDetokenizer, " helpful"),
        (make_tokenizer, NaiveStreamingDetokenizer, " helpful"),
        (make_sentencepiece, SPMStreamingDetokenizer, "helpful"),  # it writes the space
    ],
)
def test_reply_behind_a_text_keeps_its_first_space(make: Any, kind: Any, written: str) -> None:
    tokenizer = TokenizerWrapper(make("{{ messages }}"), kind)
    tokens = tokenizer.encode(written, add_special_tokens=False)
    reply = ReplyText(behind_text(tokenizer))
    assert "".join([*map(reply.push, tokens), reply.end()]) == " helpful"


def test_token_that_the_tokenizer_does_not_know_says_nothing() -> None:
    reply = ReplyText(Pieces(["a"]))
    assert reply.push(5) == ""
    assert reply.push(0) == "a"
