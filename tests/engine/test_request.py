"""What a request, a prompt and a match take: what was meant, or BadInput that says what was expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from keepwarm import Boundary, PrefixCache, Prompt, Request, Sampling
from keepwarm.engine.request import Grammar, GrammarKind
from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import BoundaryKind

from .engines import bench, model_of

PROMPT = Prompt([1, 2, 3])


def test_stop_that_is_one_text_is_not_its_letters() -> None:
    assert Request(PROMPT, 5, stop="Lund").stop == ("Lund",)
    assert Request(PROMPT, 5, stop=["Lund", "Porto"]).stop == ("Lund", "Porto")


@pytest.mark.parametrize(
    "make", [list, tuple, np.array, mx.array], ids=["list", "tuple", "np", "mx"]
)
def test_token_ids_are_a_prompt(make: Callable[[Any], Any]) -> None:
    tokens = make([1, 2, 3])
    assert Request(tokens, 5).prompt.tokens.tolist() == [1, 2, 3]
    cache = PrefixCache(model_of("llama"), budget_bytes=0)
    assert cache.match(tokens).prompt.tokens.tolist() == [1, 2, 3]


def test_inserts_take_token_ids() -> None:
    cache = PrefixCache(model_of("llama"), budget_bytes=1 << 20)
    live, tokens = cache.fresh(), [1, 2, 3, 4]
    model_of("llama")(mx.array(tokens)[None], cache=live.caches)
    live.advance(tokens)
    assert cache.insert(tokens, live).is_stored
    assert cache.match([*tokens, 5]).cached_len == 4


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a text": (lambda: Request("hello", 5), "render_text"),
    "floats": (lambda: Prompt([1.5]), "integers"),
    "several lists": (lambda: Request([[1, 2], [3]], 5), "flat list"),
    "a list in a list": (lambda: Request([[1, 2]], 5), "flat list"),
    "huge ids": (lambda: Prompt([2**40]), "31 bits"),
    "nothing": (lambda: Request(None, 5), "integers"),
    "no reply": (lambda: Request(PROMPT, 0), "max_tokens must be at least 1, got 0"),
    "an empty stop": (lambda: Request(PROMPT, 5, stop=[""]), "empty"),
    "a token as stop": (lambda: Request(PROMPT, 5, stop=[5]), "a text or a list of texts"),
    "a schema": (lambda: Request(PROMPT, 5, grammar={}), r"Grammar.json\(schema\), got dict"),
    "settings": (lambda: Request(PROMPT, 5, sampling={}), "got dict"),
    "words": (lambda: Sampling(temperature="hot"), "temperature must be a number"),
    "a pair": (lambda: Prompt([1], [(1, "mark")]), r"Boundary\(position, kind\), not \(1"),
    "a word's place": (
        lambda: Prompt([1, 2], [Boundary("1", BoundaryKind.MARK)]),
        r"Boundary\(position, kind\)",
    ),
    "a text to match": (lambda: PrefixCache(model_of("llama")).match("hello"), "not of str"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_meant_says_what_was_expected(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make()


def test_grammars_are_made_by_name() -> None:
    assert Grammar.json({"type": "null"}) == Grammar(GrammarKind.JSON_SCHEMA, '{"type": "null"}')
    assert Grammar.json('{"type": "null"}') == Grammar.json({"type": "null"})
    assert Grammar.regex("a+", after="</think>") == Grammar(GrammarKind.REGEX, "a+", "</think>")
    assert Grammar.lark("start: A").kind is GrammarKind.LARK


def test_engine_serves_a_list_of_token_ids() -> None:
    engine = bench("llama")
    _, heard = engine.ask([1, 2, 3, 4], max_tokens=3)
    engine.run()
    assert len(heard.tokens) == 3
