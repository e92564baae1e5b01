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
from keepwarm.prompt.tags import Markup
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


THINKS = Markup(
    {
        "normal": [("<t>", "reasoning"), ("<c>", "tool")],
        "reasoning": [("</t>", "normal"), ("<c>", "tool")],
        "tool": [("</c>", "normal")],
    },
    "reasoning",
)


def told(text: str, stop: str, markup: Markup) -> tuple[str, bool]:
    """What is told of `text` and whether it stopped, the same for letters and for the whole."""
    ways = []
    for pieces in (list(text), [text]):
        reply, given_out = ReplyText(Pieces(pieces), [stop], markup), ""
        for token in range(len(pieces)):
            if not reply.is_stopped:
                given_out += reply.push(token)
        given_out += reply.end()
        assert given_out == reply.text
        ways.append((given_out, reply.is_stopped))
    assert ways[0] == ways[1]
    return ways[0]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Hm.\n\nSo.</t>\n\nHello.\n\nBye.", "Hm.\n\nSo.</t>\n\nHello."),
        ("Hm.</t>\n\nI call.\n<c>a\n\nb</c>\n\nDone", None),
        ("Hm.</t>\n\nI call.\n\n<c>a</c>", "Hm.</t>\n\nI call."),
        ("Hm.<c>a\n\nb</c>", None),
        ("Hm.\n\n", None),
        ("Hm.</t>Hi<t>\n\n</t>\n\n", None),
    ],
)
def test_stop_texts_bind_in_the_content_alone(text: str, shown: str | None) -> None:
    expected = (text, False) if shown is None else (shown, True)
    assert told(text, "\n\n", THINKS) == expected


def test_stop_text_may_begin_as_a_tag_does() -> None:
    assert told("Hm.</t>Hi <to</t>", "<to", THINKS) == ("Hm.</t>Hi ", True)
    assert told("Hm.</t>Hi <t>o", "<to", THINKS) == ("Hm.</t>Hi <t>o", False)


def test_blank_lines_before_the_content_are_no_stop() -> None:
    silent = Markup(THINKS.table, "normal")
    assert told("\n\nHi\n\nyou", "\n\n", silent) == ("\n\nHi", True)


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
