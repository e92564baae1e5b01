"""Live caches know how far they have read, and what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.live import Live
from keepwarm.prompt.boundaries import Prompt

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30)


@given(tokens=TOKENS, data=st.data())
def test_digest_is_that_of_the_tokens_read_however_they_were_cut(
    tokens: list[int], data: st.DataObject
) -> None:
    prompt, live = Prompt(tokens), Live([])
    while live.position < len(tokens):
        end = data.draw(st.integers(live.position + 1, len(tokens)))
        live.advance(tokens[live.position : end])
        assert live.position == end == live.cuts[-1]
        assert live.digest == prompt.digest(end)


@given(tokens=TOKENS, data=st.data())
def test_caches_brought_back_go_on_like_those_that_read_all(
    tokens: list[int], data: st.DataObject
) -> None:
    prompt = Prompt(tokens)
    position = data.draw(st.integers(0, len(tokens)))
    live = Live.at([], prompt, position, [position] if position else [])
    assert (live.position, live.digest) == (position, prompt.digest(position))
    live.advance(prompt.tokens[position:])
    assert live.digest == prompt.digest(len(prompt))


@given(tokens=TOKENS, other=TOKENS)
def test_other_tokens_give_another_digest(tokens: list[int], other: list[int]) -> None:
    one, two = Live([]), Live([])
    one.advance(tokens)
    two.advance(other)
    assert (one.digest == two.digest) == (tokens == other)
