"""Guides: replies that fit a schema, a regular expression or a grammar, whatever the logits."""

from __future__ import annotations

import itertools
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from keepwarm.cache.store import PrefixCache
from keepwarm.engine.decode import decode
from keepwarm.engine.grammar import MAX_TEXT_LEN, Guide, Guides, any_object
from keepwarm.engine.prefill import Prefill
from keepwarm.engine.request import Grammar, GrammarKind, Sampling
from keepwarm.engine.sampling import Draw
from keepwarm.errors import BadInput
from keepwarm.prompt.plain import render_text

from ..architectures.zoo import ARCHITECTURES
from ..prompt.tokenizers_for_tests import own

TOKENIZER = own("drops_thoughts")
IM_END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
# As mlx-lm loads a model whose generation config names a second end.
WRAPPER = TokenizerWrapper(TOKENIZER, eos_token_ids=[IM_END])
ENDS = {TOKENIZER.eos_token_id, IM_END}
NUM_VOCAB = len(TOKENIZER) + 40  # models pad theirs
GUIDES = Guides(WRAPPER)

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "degrees": {"type": "integer", "minimum": -50, "maximum": 60},
        "sky": {"enum": ["sunny", "grey"]},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["city", "degrees", "sky"],
    "additionalProperties": False,
}


def schema(value: Any, **settings: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value), **settings)


def lark(text: str) -> Grammar:
    return Grammar(GrammarKind.LARK, text)


def regex(text: str, **settings: Any) -> Grammar:
    return Grammar(GrammarKind.REGEX, text, **settings)


def token(text: str) -> int:
    (value,) = TOKENIZER.encode(text, add_special_tokens=False)
    return int(value)


def allowed(guide: Guide) -> set[int]:
    mask = guide.mask(NUM_VOCAB)
    assert mask is not None
    assert mask.shape == (NUM_VOCAB,)
    return {int(i) for i in np.flatnonzero(mask)}


def generated(grammar: Grammar, seed: int, num_tokens: int = 200) -> tuple[list[int], bool]:
    """What random logits say under a grammar, and whether they came to an end."""
    draw = Draw(
        Sampling(temperature=1.0, seed=seed),
        prompt=np.array([1], dtype=np.int32),
        guide=GUIDES.guide(grammar),
    )
    assert draw.needs_last
    assert not draw.is_greedy
    noise = np.random.default_rng(seed)
    tokens: list[int] = []
    for _ in range(num_tokens):
        logits = mx.array(noise.normal(scale=3.0, size=(1, NUM_VOCAB)).astype(np.float32))
        value = int(draw.draw(logits).item())
        draw.accept(value)
        if value in ENDS:
            return tokens, True
        tokens.append(value)
    return tokens, False


def fits_weather(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {"city", "degrees", "sky"} <= value.keys() <= WEATHER["properties"].keys()  # type: ignore[attr-defined]
        and isinstance(value["city"], str)
        and len(value["city"]) <= 12
        and type(value["degrees"]) is int
        and -50 <= value["degrees"] <= 60
        and value["sky"] in ("sunny", "grey")
        and len(value.get("tags", [])) <= 3
        and all(isinstance(tag, bool) for tag in value.get("tags", []))
    )


def test_random_logits_give_json_that_fits_the_schema() -> None:
    num_ended = 0
    for seed in range(12):
        tokens, is_ended = generated(schema(WEATHER), seed)
        if is_ended:
            num_ended += 1
            assert fits_weather(json.loads(TOKENIZER.decode(tokens)))
    assert num_ended > 5


def test_random_logits_give_an_object() -> None:
    ended = [
        tokens for tokens, is_ended in (generated(any_object(), s) for s in range(12)) if is_ended
    ]
    assert len(ended) > 2
    assert all(isinstance(json.loads(TOKENIZER.decode(tokens)), dict) for tokens in ended)


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        (regex(r"[a-c]{3}-\d+é?"), r"[a-c]{3}-\d+é?"),
        (
            lark('start: ("yes" | "no") " "? NAME\nNAME: /[A-Z][a-z]{2,5}/'),
            r"(yes|no) ?[A-Z][a-z]{2,5}",
        ),
    ],
    ids=["regex", "lark"],
)
def test_random_logits_give_text_that_fits(grammar: Grammar, pattern: str) -> None:
    for seed in range(6):
        tokens, is_ended = generated(grammar, seed)
        assert is_ended
        assert re.fullmatch(pattern, TOKENIZER.decode(tokens))


def test_every_end_is_allowed_where_the_grammar_may_end_and_nothing_else_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guide = GUIDES.guide(regex("ab?"))
    assert allowed(guide) == {token("a")}
    guide.accept(token("a"))
    assert allowed(guide) == {token("b"), *ENDS}
    guide.accept(token("b"))
    assert allowed(guide) == ENDS
    guide.accept(IM_END)
    assert allowed(guide) == ENDS
    guide.accept(token("a"))  # the decode loop draws one more than it needs
    assert allowed(guide) == ENDS
    assert not caplog.records


def test_model_that_knows_no_token_that_fits_ends() -> None:
    last = max(token("a"), *ENDS)
    guide = GUIDES.guide(lark(f"start: <[{last}]>"))
    mask = guide.mask(last)
    assert mask is not None
    assert {int(i) for i in np.flatnonzero(mask)} == ENDS - {last}


def test_ids_that_no_text_has_are_forbidden() -> None:
    assert max(allowed(GUIDES.guide(regex(r"(.|\n)*")))) < len(TOKENIZER)


def test_model_may_know_fewer_tokens_than_the_tokenizer() -> None:
    guide = GUIDES.guide(regex("ab"))
    mask = guide.mask(token("a") + 1)
    assert mask is not None
    assert np.flatnonzero(mask).tolist() == [token("a")]


def test_blanks_come_to_an_end() -> None:
    guide = GUIDES.guide(any_object())
    guide.accept(token("{"))
    guide.accept(token(" "))
    assert token(" ") not in allowed(guide)
    assert token('"') in allowed(guide)


def test_a_new_line_may_be_indented_and_that_comes_to_an_end() -> None:
    guide = GUIDES.guide(any_object())
    guide.accept(token("{"))
    guide.accept(token("\n"))
    for _ in range(32):
        assert token(" ") in allowed(guide)
        guide.accept(token(" "))
    assert token(" ") not in allowed(guide)
    assert token('"') in allowed(guide)


def test_failure_of_the_grammar_ends_the_reply_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = [(token("a"), ""), (NUM_VOCAB - 1, ""), (-1, ""), (-1, "</think>")]
    for bad, text in failing:
        guide = GUIDES.guide(schema(WEATHER, after=text))
        with caplog.at_level(logging.WARNING, logger="keepwarm"):
            guide.accept(bad)
        assert allowed(guide) == ENDS
        assert "the reply ends here" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("temperature", [1e-320, 1e300])
def test_no_temperature_leaves_the_grammar(temperature: float) -> None:
    for seed in range(5):
        guide = GUIDES.guide(regex("[ab]"))
        sampling = Sampling(temperature=temperature, seed=seed)
        draw = Draw(sampling, prompt=np.array([1], dtype=np.int32), guide=guide)
        assert int(draw.draw(mx.zeros((1, NUM_VOCAB))).item()) in (token("a"), token("b"))


def test_bias_does_not_overrule_the_grammar() -> None:
    sampling = Sampling(logit_bias={token("c"): 1e30})
    draw = Draw(sampling, prompt=np.array([1], dtype=np.int32), guide=GUIDES.guide(regex("[ab]")))
    assert int(draw.draw(mx.zeros((1, NUM_VOCAB))).item()) == token("a")


def test_decode_tells_the_guide_each_token_before_the_next_is_drawn() -> None:
    architecture = ARCHITECTURES["llama"]
    config = {**architecture.config, "vocab_size": NUM_VOCAB}
    model = replace(architecture, config=config).build(mx.float32)
    prompt = render_text(TOKENIZER, "What is the weather in Paris today?")
    with Prefill(model, PrefixCache(model), prompt) as prefill:
        list(prefill.steps())
        draw = Draw(
            Sampling(), prompt=prompt.tokens, guide=GUIDES.guide(regex("[a-z]{3}, [A-Z]{3}"))
        )
        steps = itertools.islice(decode(model, prefill.live, prefill.logits, draw), 12)
        tokens = [step.value for step in steps]
        assert prefill.live.position == len(prompt) + 12
    said = list(itertools.takewhile(lambda value: value not in ENDS, tokens))
    assert re.fullmatch("[a-z]{3}, [A-Z]{3}", TOKENIZER.decode(said))


def test_two_guides_of_one_grammar_go_their_own_ways() -> None:
    first, second = GUIDES.guide(regex("ab")), GUIDES.guide(regex("ab"))
    first.accept(token("a"))
    assert allowed(second) == {token("a")}
    assert allowed(first) == {token("b")}


@pytest.mark.parametrize("after", ["</think>", "</done>"], ids=["special token", "plain text"])
def test_grammar_binds_once_the_text_before_it_was_generated(after: str) -> None:
    guide = GUIDES.guide(regex("ab", after=after))
    said = TOKENIZER.encode(f"The user, </th </don <think {after}", add_special_tokens=False)
    for value in said:
        assert guide.mask(NUM_VOCAB) is None
        guide.accept(value)
    assert allowed(guide) == {token("a")}


def test_end_of_a_thought_within_a_token_counts_what_follows_as_answer() -> None:
    assert len(TOKENIZER.encode(" assistant", add_special_tokens=False)) == 1
    guide = GUIDES.guide(regex("istant!", after="ass"))
    guide.accept(token(" assistant"))
    assert allowed(guide) == {token("!")}
    unfit = GUIDES.guide(regex("ab", after="ass"))
    unfit.accept(token(" assistant"))
    assert allowed(unfit) == {token("a")}


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (schema({"type": "objec"}), "Invalid type: objec"),
        (schema(5), "schema must be an object or boolean"),
        (schema({"type": "array", "uniqueItems": True}), 'Unimplemented keys: ["uniqueItems"]'),
        (schema({"type": "string", "pattern": "(?=a)"}), "look-around"),
        (schema({"x-guidance": {"lenient": "no"}}), "invalid type"),
        (schema({"x-guidance": {"whitespace_pattern": "("}}), "cannot be used"),
        (schema({"$ref": "https://example.com/x"}), "not present"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type":'), "line 1 column 9"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"const": NaN}'), "not JSON compliant"),
        (Grammar(GrammarKind.JSON_SCHEMA, "[" * 60_000), "recursion"),
        (Grammar(GrammarKind.JSON_SCHEMA, '{"const": "\\ud800"}'), "hex escape"),
        (regex("\ud800"), "surrogates not allowed"),
        (lark('start: "\ud800"'), "surrogates not allowed"),
        (regex("a("), "unclosed group"),
        (regex("(" * 30_000), "invalid regex"),
        (lark("start: b"), 'unknown name: "b"'),
        (lark("root ::= b"), "Rule 'b' not found"),
        (lark("root ::= " + "(" * 30_000), "recursion"),
        (lark(""), "Empty grammar"),
        (lark("start: " + "(" * 30_000), "too deeply nested"),
        (regex("a" * (MAX_TEXT_LEN + 1)), f"at most {MAX_TEXT_LEN}"),
    ],
)
def test_bad_grammar_is_refused_in_the_librarys_words(grammar: Grammar, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)) as raised:
        GUIDES.check(grammar)
    assert len(str(raised.value)) < 1200
    with pytest.raises(BadInput):
        GUIDES.guide(grammar)


def test_schema_that_takes_anything_is_one() -> None:
    assert {token("{"), token('"'), token("1")} <= allowed(GUIDES.guide(schema(True)))


def test_long_chains_of_references_do_not_end_the_process() -> None:
    """Followed on an ordinary stack, these overflow it."""
    rules = [f"a{i:x}:a{i + 1:x}" for i in range(5000)]
    GUIDES.check(lark("start:a0\n" + "\n".join(rules) + f'\na{5000:x}:"x"\n'))
    defs: dict[str, Any] = {
        f"{i:x}": {"anyOf": [{"$ref": f"#/$defs/{i + 1:x}"}, {}]} for i in range(1200)
    }
    text = json.dumps(
        {"$ref": "#/$defs/0", "$defs": {**defs, f"{1200:x}": True}}, separators=(",", ":")
    )
    assert len(text) < MAX_TEXT_LEN
    GUIDES.check(Grammar(GrammarKind.JSON_SCHEMA, text))


def test_checks_on_many_threads_agree() -> None:
    guides = Guides(WRAPPER)
    grammars = [regex(f"a{{{i % 5 + 1}}}") for i in range(60)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(guides.guide, grammars))
    for i, guide in enumerate(made):
        for _ in range(i % 5 + 1):
            assert token("a") in allowed(guide)
            guide.accept(token("a"))
        assert allowed(guide) == ENDS


def test_more_grammars_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keepwarm.engine.grammar._NUM_KEPT", 32)
    guides = Guides(TOKENIZER)  # without mlx-lm's wrapper, too
    for i in range(40):
        guides.check(regex(f"a{{{i + 1}}}"))
    assert allowed(guides.guide(regex("a{1}"))) >= {token("a")}
    assert len(guides._compiled) == 32


def test_tokenizer_that_cannot_be_read_is_named_as_the_reason() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "</s>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>")
    with pytest.raises(BadInput, match="this model's tokenizer"):
        Guides(made).check(any_object())
    endless = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer)
    with pytest.raises(BadInput, match="end-of-text"):
        Guides(endless).check(any_object())
