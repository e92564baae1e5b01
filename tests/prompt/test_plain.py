"""Plain text to be completed: the tokenizer's own tokens, encoded once."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from keepwarm.errors import BadInput
from keepwarm.prompt.blocks import Offsets
from keepwarm.prompt.plain import render_text
from tests.prompt.tokenizers_for_tests import BOS, make_tokenizer

LONG = "\n".join(f"What is the weather in Paris on day {i}? é 日本" for i in range(2000))


def test_plain_text_is_encoded_as_the_tokenizer_does() -> None:
    tokenizer = make_tokenizer(None)
    prompt = render_text(tokenizer, "Once upon a time")
    assert prompt.tokens.tolist() == tokenizer.encode("Once upon a time")
    assert prompt.boundaries == ()


@pytest.mark.parametrize("adds_eos", [False, True])
@pytest.mark.parametrize("adds_bos", [False, True])
def test_text_that_was_encoded_before_has_the_same_tokens(adds_bos: bool, adds_eos: bool) -> None:
    tokenizer = make_tokenizer(
        None, extra_tokens=("<|fim|>",), adds_bos=adds_bos, adds_eos=adds_eos
    )
    for text in (
        LONG,
        LONG,
        f"{LONG} Sunny?",
        f"{LONG}<|fim|>{LONG}",
        f"{LONG[:9000]}<|fim|>",
        "Hi",
    ):
        assert render_text(tokenizer, text).tokens.tolist() == tokenizer.encode(text)


@pytest.mark.parametrize("adds_bos", [False, True])
def test_last_paragraph_begins_behind_the_text_before_it(adds_bos: bool) -> None:
    tokenizer = make_tokenizer(None, adds_bos=adds_bos, adds_eos=True)
    for end in ("", "\n\n", " " * 100 + "\n\n\n"):
        prompt = render_text(tokenizer, f"{LONG}\n\nSunny?{end}")
        [mark] = prompt.boundaries
        before = prompt.tokens[int(adds_bos) : mark.position]
        assert tokenizer.decode(before) == f"{LONG}\n\n"


def test_text_is_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, plain = make_tokenizer(None), Offsets.of
    num_chars: list[int] = []

    def noted(callee: object, text: str) -> Offsets:
        num_chars.append(len(text))
        return plain(callee, text)

    monkeypatch.setattr(Offsets, "of", noted)
    for text in (LONG, LONG, f"{LONG} Sunny?"):
        render_text(tokenizer, text)
    whole, end = num_chars
    assert whole == len(LONG)
    assert end < len(LONG) / 4
    render_text(tokenizer, LONG, namespace="another")
    assert num_chars[2:] == [len(LONG)]


def test_tokenizer_that_rewrites_text_is_asked_for_the_whole() -> None:
    """As CodeLlama's does: what is to be filled in comes behind all else."""

    class Filling(PreTrainedTokenizerFast):  # type: ignore[misc]
        def _encode_plus(self, text: Any, *args: Any, **kwargs: Any) -> Any:
            before, _, behind = text.partition("<|fill|>")
            text = f"<|fill|>{before}{behind}" if "<|fill|>" in text else text
            return super()._encode_plus(text, *args, **kwargs)

    plain = make_tokenizer(None, extra_tokens=("<|fill|>",))
    tokenizer = Filling(tokenizer_object=plain.backend_tokenizer)
    for text in (LONG, f"{LONG}<|fill|>Sunny.", f"{LONG}<|fill|>Sunny. And then?"):
        assert render_text(tokenizer, text).tokens.tolist() == tokenizer.encode(text)


def test_tokenizer_that_adds_what_it_also_reads_is_asked_for_the_whole() -> None:
    class Doubling:
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [0, *map(ord, text), 0] if add_special_tokens else [ord(c) for c in text]

    class SameForAll(Doubling):
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [0] * (len(text) + add_special_tokens)

    for tokenizer in (Doubling(), SameForAll()):
        expected = tokenizer.encode("Hi", add_special_tokens=True)
        assert render_text(tokenizer, "Hi").tokens.tolist() == expected  # type: ignore[arg-type]


def test_tokenizer_that_hides_what_it_adds_is_asked_for_the_whole() -> None:
    class Hiding:
        def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
            return [9, 1, 8] if add_special_tokens else []

    assert render_text(Hiding(), "Hi").tokens.tolist() == [9, 1, 8]  # type: ignore[arg-type]


def test_beginning_token_is_not_added_twice() -> None:
    tokenizer = make_tokenizer(None, adds_bos=True)
    bos = tokenizer.bos_token_id
    for text in ("Once", BOS + "Once"):
        assert render_text(tokenizer, text).tokens.tolist().count(bos) == 1
        assert render_text(tokenizer, text).tokens[0] == bos


def test_what_is_not_text_is_bad_input() -> None:
    with pytest.raises(BadInput, match="int"):
        render_text(make_tokenizer(None), 5)  # type: ignore[arg-type]


def test_empty_text_is_bad_input() -> None:
    with pytest.raises(BadInput):
        render_text(make_tokenizer(None), "")
