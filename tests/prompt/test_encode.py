"""Edges of tokens in text, with and without a tokenizer that tells offsets."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from keepwarm.prompt.encode import encode
from keepwarm.prompt.template import encodes_plainly
from tests.prompt.tokenizers_for_tests import make_tokenizer, own


class Slow:
    """A tokenizer that does not tell offsets."""

    def __init__(self, fast: Any) -> None:
        self._fast = fast

    def encode(self, text: str, **kwargs: Any) -> list[int]:
        return list(self._fast.encode(text, **kwargs))

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        return self._fast.apply_chat_template(conversation, **kwargs)


class Wrapper:
    """What mlx-lm puts around a tokenizer: names are forwarded, calls are not."""

    def __init__(self, fast: Any) -> None:
        self._tokenizer = fast

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


FAST = make_tokenizer(None, extra_tokens=("<|end|>",))


@given(st.text(alphabet="ab \n.é👩日<|end|>", max_size=30))
@pytest.mark.parametrize(
    "tokenizer", [FAST, Slow(FAST), Wrapper(FAST)], ids=["fast", "slow", "mlx"]
)
def test_edge_means_that_both_sides_are_whole_tokens(tokenizer: Any, text: str) -> None:
    encoded = encode(tokenizer, text)
    assert encoded.ids.tolist() == FAST.encode(text, add_special_tokens=False)
    for char in range(len(text) + 1):
        position = encoded.position(char)
        if position is not None:
            assert FAST.decode(encoded.ids[:position]) == text[:char]
    assert encoded.position(len(text)) == len(encoded.ids)
    assert encoded.position(0) == 0


def test_fast_tokenizer_finds_every_edge() -> None:
    text = "Hello there,\n\nhow are you?<|end|>\n👩‍👩‍👧 é"
    encoded = encode(FAST, text)
    found = [encoded.position(char) for char in range(len(text) + 1)]
    prefixes = {FAST.decode(encoded.ids[:n]) for n in range(len(encoded.ids) + 1)}
    edges = [char for char in range(len(text) + 1) if text[:char] in prefixes]
    assert [char for char, position in enumerate(found) if position is not None] == edges


def test_slow_tokenizer_is_not_asked_for_the_whole_text_again() -> None:
    class Counting(Slow):
        num_chars = 0

        def encode(self, text: str, **kwargs: Any) -> list[int]:
            Counting.num_chars += len(text)
            return super().encode(text, **kwargs)

    text = "A line of text.<|end|>" * 100
    encoded = encode(Counting(FAST), text)
    for end in range(22, len(text) + 1, 22):
        assert encoded.position(end) is not None
    assert Counting.num_chars <= 2 * len(text)


def test_space_trimmed_from_an_offset_is_not_an_edge() -> None:
    """GPT-2's post-processor says that ` b` begins at the letter."""
    vocab = {"a": 0, "Ġb": 1, "b": 2, "Ġ": 3}
    trimming = Tokenizer(models.BPE(vocab=vocab, merges=[("Ġ", "b")]))
    trimming.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trimming.post_processor = processors.ByteLevel(trim_offsets=True)
    trimming.decoder = decoders.ByteLevel()
    encoded = encode(PreTrainedTokenizerFast(tokenizer_object=trimming), "a b")
    assert encoded.ids.tolist() == [0, 1]
    assert [encoded.position(char) for char in range(4)] == [0, 1, None, 2]


def test_tokenizer_with_a_renderer_of_its_own_is_noticed() -> None:
    class Custom:
        def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
            return []

        def encode(self, text: str, **kwargs: Any) -> list[int]:
            return []

    assert encodes_plainly(own("plain"))
    assert encodes_plainly(Wrapper(own("plain")))
    assert not encodes_plainly(Custom())
