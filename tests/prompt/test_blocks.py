"""Text that is encoded block by block, and remembered, has the tokens of the whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from keepwarm.prompt import blocks
from keepwarm.prompt.blocks import BLOCK_TOKENS, Cuts, Offsets, Remembered, blocks_of
from keepwarm.prompt.encode import encode
from keepwarm.prompt.memory import memory_of
from tests.prompt.tokenizers_for_tests import make_sentencepiece, make_tokenizer

TEMPLATE = "<|im_start|>{{ messages[0].content }}<|im_end|>"
BYTES = make_tokenizer(TEMPLATE, extra_tokens=("<think>", "</think>"))
PIECES = make_sentencepiece(TEMPLATE)


def metaspace(scheme: str) -> Any:
    """As T5 and Llama 3 before it was itself: words begin with a sign for a space."""
    words = {f"▁{letter}": i for i, letter in enumerate("ab")} | {"▁": 2, "a": 3, "b": 4, "<": 5}
    made = Tokenizer(models.BPE(vocab=words, merges=[("▁", "a"), ("▁", "b")], unk_token="<"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    names = ("<|im_start|>", "<|im_end|>")
    made.add_special_tokens(
        [AddedToken(name, special=True, rstrip=name == "<|im_end|>") for name in names]
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


def awkward() -> Any:
    """With tokens that look around them: at the spaces before, at letters beside, and longer ones
    that begin alike."""
    made = Tokenizer.from_str(BYTES.backend_tokenizer.to_str())
    made.add_tokens([AddedToken("<think>!", lstrip=True, normalized=False)])
    made.add_tokens([AddedToken("stop", single_word=True, normalized=False)])
    made.add_special_tokens([AddedToken("endturn", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=made)


def splitting() -> Any:
    """Special tokens are read as any text."""
    made = Tokenizer.from_str(BYTES.backend_tokenizer.to_str())
    return PreTrainedTokenizerFast(tokenizer_object=made, split_special_tokens=True)


TOKENIZERS = {
    "bytes": BYTES,
    "awkward": awkward(),
    "splitting": splitting(),
    "sentencepiece": PIECES,
    "first": metaspace("first"),
    "always": metaspace("always"),
}


def with_short_blocks(tokenizer: Any, min_chars: int = 8) -> Any:
    """Blocks so short that any text has many; nothing is remembered yet."""
    memory = memory_of(tokenizer)
    memory.blocks = Remembered()
    key = ("cuts", len(tokenizer))
    memory.learn_anew(key, lambda: replace(Cuts.of(tokenizer), min_chars=min_chars))
    return tokenizer


texts = st.lists(
    st.sampled_from(
        [
            "a",
            "b",
            " ",
            "\n",
            " a b",
            "ab" * 6,
            "<|im_start|>",
            "<|im_end|>",
            "<think>",
            "<|",
            "é",
            "<think>!",
            "endturn",
            "|>",
            "stop",
        ]
    ),
    max_size=40,
).map("".join)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(earlier=texts, text=texts)
def test_blocks_have_the_tokens_and_edges_of_the_whole(name: str, earlier: str, text: str) -> None:
    tokenizer = with_short_blocks(TOKENIZERS[name])
    encode(tokenizer, earlier)
    for asked in (text, earlier + text):
        found, plain = encode(tokenizer, asked), Offsets.of(tokenizer, asked)
        assert found.ids.tolist() == plain.ids.tolist()
        assert np.array_equal(found._starts, plain.starts)  # type: ignore[attr-defined]
        assert np.array_equal(found._ends, plain.ends)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "earlier", "more"),
    [
        ("splitting", "|>", "<think> so"),
        ("awkward", "   ", "<think>! so"),
        ("awkward", " stop", "endturn so"),
    ],
    ids=["split", "lstrip", "single word"],
)
def test_what_stands_before_a_block_may_change_it(name: str, earlier: str, more: str) -> None:
    tokenizer = with_short_blocks(TOKENIZERS[name], min_chars=100)
    earlier = "word " * 40 + earlier
    encode(tokenizer, earlier)
    whole = earlier + more + " word" * 40
    assert encode(tokenizer, whole).ids.tolist() == Offsets.of(tokenizer, whole).ids.tolist()


def counted(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the tokenizer is asked for from now on."""
    asked: list[str] = []
    plain = Offsets.of

    def of(callee: Any, text: str) -> Offsets:
        asked.append(text)
        return plain(callee, text)

    monkeypatch.setattr(Offsets, "of", staticmethod(of))
    return asked


def turn(number: int) -> str:
    return f"<|im_start|>turn {number} of a long conversation<|im_end|>\n"


def test_only_what_is_new_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = with_short_blocks(BYTES, min_chars=30)
    past = "".join(turn(i) for i in range(5))
    encode(tokenizer, past + turn(5))
    asked = counted(tokenizer, monkeypatch)
    encode(tokenizer, past + turn(5))
    assert sum(map(len, asked)) < 30  # an end that is too short for a block
    asked.clear()
    encode(tokenizer, past + turn(5) + turn(6))
    assert (past + turn(5) + turn(6)).endswith("".join(asked))
    assert sum(map(len, asked)) < 30 + len(turn(6))


def test_a_namespace_has_nothing_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = with_short_blocks(BYTES)
    asked = counted(tokenizer, monkeypatch)
    for namespace in ("one", "other"):
        encode(tokenizer, turn(1), namespace)
    assert asked == [turn(1), turn(1)]


def test_blocks_are_cut_where_no_other_token_can_reach() -> None:
    made = Tokenizer.from_str(BYTES.backend_tokenizer.to_str())
    made.add_special_tokens([AddedToken("x<|im_st"), AddedToken("<|pad|>", lstrip=True)])
    made.add_tokens([AddedToken("<word>", single_word=True), AddedToken("<sum>", normalized=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made)
    cuts = Cuts.of(tokenizer)
    assert {"<|im_end|>", "<think>", "</think>"} <= set(cuts.tokens)
    assert not {"<|im_start|>", "<|pad|>", "<word>", "<sum>"} & set(cuts.tokens)


@pytest.mark.parametrize(
    "text", [("word " * 400 + turn(1)) * 4, turn(1) * 99, "<" * 4000 + turn(2)]
)
def test_few_marks_and_many_are_found_alike(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for limit in (0, len(text) + 1):  # all are few; none are
        monkeypatch.setattr(blocks, "_FEW_HEADS", limit)
        found.append(Cuts.of(BYTES).block_starts(text))
    assert found[0] == found[1]
    assert len(found[0]) > 1


def test_tokens_that_are_added_later_are_read() -> None:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(BYTES.backend_tokenizer.to_str())
    )
    text = "<|im_start|>hello there" * 100
    before = encode(tokenizer, text).ids.tolist()
    tokenizer.add_tokens(["hello"])
    assert encode(tokenizer, text).ids.tolist() == Offsets.of(tokenizer, text).ids.tolist()
    assert encode(tokenizer, text).ids.tolist() != before


def test_a_run_whose_blocks_are_not_where_they_should_be_is_not_taken_apart() -> None:
    cuts = Cuts.of(BYTES)
    run = Offsets.of(BYTES, turn(1) + turn(2))
    assert blocks_of(run, [len(turn(1)), len(turn(2))], cuts) is not None
    assert blocks_of(run, [len(turn(1)) - 1, len(turn(2)) + 1], cuts) is None


def test_what_was_not_used_for_the_longest_time_is_forgotten() -> None:
    remembered = Remembered(max_tokens=2 * (2 + BLOCK_TOKENS))
    block = Offsets(*(np.zeros(2, dtype=np.int32) for _ in range(3)), np.ones(2, dtype=np.bool_))
    for key in ("a", "b"):
        remembered.put(key, block)
    assert remembered.get("a") is not None
    remembered.put("c", block)
    assert remembered.num_tokens == 2 * (2 + BLOCK_TOKENS)
    assert [key for key in "abc" if remembered.get(key) is not None] == ["a", "c"]
