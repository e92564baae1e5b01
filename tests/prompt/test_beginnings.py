"""Long text that begins as a known one has the tokens of the whole, and only its end is encoded."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from keepwarm.prompt import beginnings
from keepwarm.prompt import encode as encoding
from keepwarm.prompt.beginnings import PIECE_CHARS, Beginnings, is_near_sighted, stays_near
from keepwarm.prompt.blocks import Offsets, Remembered
from keepwarm.prompt.encode import encode
from keepwarm.prompt.memory import memory_of
from tests.prompt.test_blocks import TOKENIZERS, counted
from tests.prompt.tokenizers_for_tests import _SPLIT

BYTES = TOKENIZERS["bytes"]
WORDS = [
    "the",
    " weather",
    " in",
    " Paris",
    "\n\n",
    " 2026",
    "123456",
    ",",
    " it's",
    "  ",
    " élan",
    "—",
]


def fresh(tokenizer: Any) -> Any:
    """Nothing is remembered yet."""
    memory = memory_of(tokenizer)
    memory.blocks, memory.beginnings = Remembered(), Beginnings()
    return tokenizer


def prose(num_words: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice(WORDS) for _ in range(num_words))


def assert_whole(tokenizer: Any, text: str) -> None:
    found, plain = encode(tokenizer, text), Offsets.of(tokenizer, text)
    assert found.ids.tolist() == plain.ids.tolist()
    assert np.array_equal(found._starts, plain.starts)  # type: ignore[attr-defined]
    assert np.array_equal(found._ends, plain.ends)  # type: ignore[attr-defined]


parts = st.lists(
    st.sampled_from(
        [*WORDS, "a", " ", "\n", "ab" * 20, " " * 30, "7" * 25, "-" * 40, "'s", "<|im_end|>", "é", "<think>", "stop"]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
@given(shared=parts, more=parts, other=parts, seed=st.integers(0, 3))
def test_another_ending_has_the_tokens_of_the_whole(
    name: str, shared: str, more: str, other: str, seed: int
) -> None:
    """Pieces so short that any text has many."""
    tokenizer = fresh(TOKENIZERS[name])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginnings, "PIECE_CHARS", 64)
        past = "<|im_start|>" + prose(600, seed) + shared
        encode(tokenizer, past + more)
        for text in (past + other, past, past + other + more):
            assert_whole(tokenizer, text)


def test_only_the_end_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = fresh(BYTES)
    document = "<|im_start|>" + prose(20_000)
    encode(tokenizer, f"{document} Why?<|im_end|>")
    asked = counted(tokenizer, monkeypatch)
    whole = f"{document} And how? Tell me more.<|im_end|>"
    found = encode(tokenizer, whole)
    assert sum(map(len, asked)) < PIECE_CHARS + 2000
    # What came of it is known as well, for the next one.
    asked.clear()
    encode(tokenizer, whole)
    assert sum(map(len, asked)) < 100
    monkeypatch.undo()
    assert found.ids.tolist() == Offsets.of(tokenizer, whole).ids.tolist()


def test_a_namespace_finds_no_beginning_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = fresh(BYTES)
    encode(tokenizer, prose(20_000), "one")
    asked = counted(tokenizer, monkeypatch)
    text = prose(20_000) + " Why?"
    encode(tokenizer, text, "other")
    assert asked == [text]


def test_a_block_that_is_forgotten_is_encoded_again() -> None:
    tokenizer = fresh(BYTES)
    encode(tokenizer, prose(20_000))
    memory_of(tokenizer).blocks = Remembered()
    assert_whole(tokenizer, prose(20_000) + " Why?")


def test_tokens_that_are_others_in_the_window_are_not_believed() -> None:
    """What is known is not what the tokenizer makes of the text."""
    text = prose(3000)
    known = Offsets.of(BYTES, text)
    shared = len(text) - 1000
    assert beginnings.continued(BYTES, text + "!", known, shared) is not None
    place = int(np.searchsorted(known.ends, shared)) - beginnings.MARGIN - 40
    ids = known.ids.copy()
    ids[place] += 1
    assert beginnings.continued(BYTES, text + "!", replace(known, ids=ids), shared) is None


def cutting(pattern: str, *words: str) -> Any:
    """One that cuts by `pattern` and has tokens for some words, besides those of bytes."""
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = []
    for word in words:
        for end in range(2, len(word) + 1):
            merges.append((word[: end - 1], word[end - 1]))
            names.append(word[:end])
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(dict.fromkeys(names))}, merges))
    cut = pre_tokenizers.Split(Regex(pattern), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([cut, as_bytes])
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("shift", range(3))
@pytest.mark.parametrize(
    ("name", "words", "run", "ending"),
    [("gpt-4", ["201"], "7", "201" * 30), ("gpt-4o", ["'s't"], "'s", "'s't" * 9)],
    ids=["threes of digits", "pairs of endings"],
)
def test_words_of_a_run_are_cut_in_step(
    name: str, words: list[str], run: str, ending: str, shift: int
) -> None:
    """Begun in the middle of a word, all tokens of a window may be the same, and the words others."""
    tokenizer = cutting(PATTERNS[name], *words)
    assert is_near_sighted(tokenizer)
    document = "x " + run[:1] * shift + run * 9000
    encode(tokenizer, document + " Why?")
    assert_whole(tokenizer, document + ending + " How")


def test_a_sign_that_belongs_to_the_letter_before_is_no_edge() -> None:
    """What is put into order before it is cut may move over any number of those."""
    text = "abc a\u0301\u0316"
    each = np.arange(len(text), dtype=np.int32)
    tokens = Offsets(each, each, each + 1, np.ones(len(text), dtype=np.bool_))
    assert beginnings._edge_before(tokens, 6, text) == 4
    assert beginnings._edge_before(tokens, 6, "abc abc") == 6


def test_one_long_word_has_no_edges() -> None:
    tokenizer = fresh(BYTES)
    for length in (9000, 9001, 12_000):
        assert_whole(tokenizer, "ab" * length)
        assert_whole(tokenizer, " " * length)


def test_those_that_came_last_are_known() -> None:
    blocks = Remembered()
    found = {key: replace(Offsets.of(BYTES, key), ids=np.zeros(1, np.int32)) for key in "abcd"}
    for key, block in found.items():
        blocks.put(key, block)
    known = Beginnings(max_entries=4)
    texts = [letter * 2 * PIECE_CHARS for letter in "abc"]
    known.put("", texts[0], "a")
    known.put("", texts[1], "b")
    known.put("", texts[0], "d")
    known.put("", texts[2], "c")
    assert len(known) == 4
    assert known.longest("", texts[0] + "...", blocks) == (found["d"], 2 * PIECE_CHARS)
    assert known.longest("", texts[1], blocks) is None
    assert known.longest("", texts[2][:-1], blocks) == (found["c"], PIECE_CHARS)
    assert known.longest("other", texts[2], blocks) is None
    assert known.longest("", texts[2], Remembered()) is None


def test_a_shorter_beginning_is_taken_where_the_longest_is_forgotten() -> None:
    blocks, known = Remembered(), Beginnings()
    block = Offsets.of(BYTES, "a")
    blocks.put("short", block)
    text = "a" * 3 * PIECE_CHARS
    known.put("", text, "long")
    known.put("", text[: 2 * PIECE_CHARS], "short")
    assert known.longest("", text, blocks) == (block, 2 * PIECE_CHARS)


PATTERNS = {
    "gpt-4": _SPLIT,
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "gpt-4o": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_of_the_vendors_stay_near(name: str) -> None:
    assert stays_near(PATTERNS[name])


@pytest.mark.parametrize(
    "pattern",
    [
        "", r".+", r"\{[^{}]*\}", r"(?:\w \w)+", r"(?<=x)y", r"[\s\S]{2,}", r"[a&&[^b]]+", r'"(?~")"',
        r'"[^"[:cntrl:]]*"', r'".{0,99999}"', r"a[^a]*a", r"\s*[\r\n]+|\s", r"\p{N}+(?=%)|\p{N}{1,3}",
    ],
)  # fmt: skip
def test_patterns_that_may_reach_far_do_not(pattern: str) -> None:
    assert not stays_near(f"{pattern}|\\p{{L}}+" if pattern else "")


def test_only_those_that_cut_by_what_is_near_are_trusted() -> None:
    assert is_near_sighted(BYTES)
    assert is_near_sighted(TOKENIZERS["first"])
    assert not is_near_sighted(TOKENIZERS["sentencepiece"])  # it does not cut at all
    assert not is_near_sighted(object())
    made = Tokenizer.from_str(BYTES.backend_tokenizer.to_str())
    far = pre_tokenizers.Split(Regex(r"\{.*\}"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([far, made.pre_tokenizer])
    assert not is_near_sighted(PreTrainedTokenizerFast(tokenizer_object=made))


@pytest.mark.parametrize(
    ("normalizer", "is_near"),
    [
        (normalizers.NFC(), True),
        (normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]), True),
        (normalizers.Replace(" ", "_"), True),
        (normalizers.Replace(Regex("(?m)<!--.*?-->"), ""), False),
        (normalizers.Strip(), False),
    ],
    ids=["NFC", "sequence", "letter", "pattern", "strip"],
)
def test_what_is_changed_before_is_to_be_near_as_well(normalizer: Any, is_near: bool) -> None:
    made = Tokenizer.from_str(BYTES.backend_tokenizer.to_str())
    made.normalizer = normalizer
    assert is_near_sighted(PreTrainedTokenizerFast(tokenizer_object=made)) == is_near


def test_far_sighted_ones_encode_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = fresh(TOKENIZERS["sentencepiece"])
    monkeypatch.setattr(encoding, "continued", None)  # not to be called
    encode(tokenizer, prose(20_000))
    assert_whole(tokenizer, prose(20_000) + " Why?")
