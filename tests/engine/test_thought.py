"""Thoughts that take too long are closed: the model reads the forced tokens as if it had drawn them,
whatever runs beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keepwarm.engine.request import DecodeMode, Sampling, ThoughtLimit
from keepwarm.engine.thought import Thought, thought_limit
from keepwarm.errors import BadInput
from keepwarm.prompt.render import render_chat
from tests.architectures.drive import prompt_of, random_tokens
from tests.prompt.test_shared_templates import NAMES, NEEDS
from tests.prompt.tokenizers_for_tests import SHARED_TEMPLATES, make_tokenizer
from tests.server.serving import tokenizer as thinking_tokenizer

from .engines import Bench, alone, bench

PROMPT = prompt_of([random_tokens(48, 0), random_tokens(20, 18)])  # llama repeats itself late
KINDS = ["llama", "qwen3_5"]


def unsaid(tokens: list[int], count: int) -> list[int]:
    """Tokens that do not occur."""
    return [token for token in range(2, 90) if token not in tokens][:count]


def limit_of(said: list[int], max_tokens: int, **fields: Any) -> ThoughtLimit:
    """A thought that the model never closes by itself, closed by two tokens behind a lead."""
    lead, one, other = unsaid(said, 3)
    made = ThoughtLimit(
        max_tokens, opens=(), closes=(one, other), close=(lead, one, other), is_open=True
    )
    return replace(made, **fields)


def expected(made: Bench, limit: ThoughtLimit, num_tokens: int, num_free: int) -> list[int]:
    """What the model says freely, the forced close, and what it says behind both."""
    free = alone(made, PROMPT, num_free) if num_free else []
    read = PROMPT.extended([*free, *limit.close])
    return [*free, *limit.close, *alone(made, read, num_tokens - len(free) - len(limit.close))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decode", DecodeMode)
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("max_tokens", [1, 9])
def test_thought_is_closed_at_its_limit_and_the_model_goes_on(
    kind: str, decode: DecodeMode, exact: bool, max_tokens: int
) -> None:
    made = bench(kind, exact=exact, decode=decode)
    said = alone(made, PROMPT, 24)
    limit = limit_of(said, max_tokens)
    others = [prompt_of([random_tokens(30 + i, i)]) for i in range(3)]
    hot = Sampling(temperature=1.0, seed=5)
    _, greedy = made.ask(others[0], 20)
    _, seeded = made.ask(others[1], 20, sampling=hot)
    _, heard = made.ask(PROMPT, 24, thought=limit)
    _, raw = made.ask(others[2], 20, top_logprobs=2)
    made.run()
    # The lead belongs to the thought: budget and tokens of the thought are the same number.
    assert heard.tokens == expected(made, limit, 24, max(0, max_tokens - 1))
    assert greedy.tokens == alone(made, others[0], 20)
    assert seeded.tokens == alone(made, others[1], 20, hot)
    assert raw.tokens == alone(made, others[2], 20)
    if kind == "llama" and not exact:
        # The next turn reuses what was forced, as it was read.
        again = PROMPT.extended([*heard.tokens, 1])
        assert made.cache.peek(again).cached_len >= len(PROMPT) + 24 - 1


@pytest.mark.parametrize("at", [4, 5, 6])
def test_thought_that_ends_in_time_is_left_alone(at: int) -> None:
    made = bench("llama")
    said = alone(made, PROMPT, 24)
    assert said[at] not in said[:at]
    limit = limit_of(said, 7, closes=(said[at],), close=(unsaid(said, 1)[0], said[at]))
    _, heard = made.ask(PROMPT, 24, thought=limit)
    made.run()
    # Six tokens and the forced lead are the limit: the seventh token closes it as late as can be.
    wanted = said if at < 6 else expected(made, limit, 24, 6)
    assert heard.tokens == wanted


def test_thought_that_the_reply_opens_is_counted_from_there() -> None:
    made = bench("llama")
    said = alone(made, PROMPT, 24)
    assert said[3] not in said[:3]
    limit = limit_of(said, 6, opens=(said[3],), is_open=False)
    _, heard = made.ask(PROMPT, 24, thought=limit)
    made.run()
    assert heard.tokens == expected(made, limit, 24, 4 + 5)


def test_reply_without_a_thought_is_free() -> None:
    made = bench("llama")
    said = alone(made, PROMPT, 24)
    _, heard = made.ask(PROMPT, 24, thought=limit_of(said, 0, is_open=False))
    made.run()
    assert heard.tokens == said


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
@pytest.mark.parametrize("num_told", [7, 8, 9, 11])
def test_preempted_reply_keeps_its_count(exact: bool, num_told: int) -> None:
    made = bench("llama", exact=exact)
    limit = limit_of(alone(made, PROMPT, 24), 9)
    sequence, heard = made.ask(PROMPT, 24, thought=limit)
    made.step_until(lambda: len(heard.tokens) >= num_told)
    made.core._preempt(sequence)
    made.run()
    assert heard.tokens == expected(made, limit, 24, 8)


def test_sampled_thought_is_closed_too() -> None:
    made = bench("llama")
    hot = Sampling(temperature=1.0, seed=3, frequency_penalty=0.5)
    said = alone(made, PROMPT, 24, hot)
    limit = limit_of(said, 9)
    _, heard = made.ask(PROMPT, 24, sampling=hot, thought=limit)
    made.run()
    assert heard.tokens[:8] == said[:8]
    assert tuple(heard.tokens[8:11]) == limit.close


def test_limit_of_the_reply_counts_what_was_forced() -> None:
    made = bench("llama")
    limit = limit_of(alone(made, PROMPT, 24), 5)
    _, heard = made.ask(PROMPT, 6, thought=limit)
    made.run()
    assert heard.tokens == expected(made, limit, 24, 4)[:6]
    assert heard.result.finish_reason == "length"


def test_second_thought_has_what_the_first_left_over() -> None:
    thought = Thought(ThoughtLimit(4, opens=(1,), closes=(2,), close=(2,), is_open=True))
    for token in (7, 7, 2, 8, 1, 7):  # two, the end; words; another one begins
        assert not thought.is_forced
        thought.accept(token)
    assert thought.is_forced
    assert thought.take() == 2


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": -1}, {"closes": ()}, {"close": (5,)}],
    ids=["below 0", "none", "other"],
)
def test_limit_that_ends_nothing_is_bad_input(fields: dict[str, Any]) -> None:
    good: dict[str, Any] = {"max_tokens": 1, "opens": (1,), "closes": (2,), "close": (2,)}
    with pytest.raises(BadInput):
        ThoughtLimit(**{**good, **fields})


def test_thought_is_closed_as_the_template_writes_it() -> None:
    words = thinking_tokenizer()
    kwargs = {"thinks": True}
    prompt = render_chat(words, [{"role": "user", "content": "Hi"}], template_kwargs=kwargs)
    limit = thought_limit(words, prompt, 5, template_kwargs=kwargs)
    assert limit is not None
    assert limit.is_open
    assert words.decode(limit.close) == "\n</think>"
    quiet = render_chat(words, [{"role": "user", "content": "Hi"}])
    assert thought_limit(words, quiet, 5) == replace(limit, is_open=False)


def test_model_without_thoughts_has_no_limit() -> None:
    plain = make_tokenizer("{{ messages }}")
    assert thought_limit(plain, PROMPT, 5) is None


@pytest.mark.skipif("openai-gpt-oss-120b" not in NAMES, reason="the shared templates are not here")
def test_harmony_is_closed_by_its_own_tag() -> None:
    template = (SHARED_TEMPLATES / "openai-gpt-oss-120b.jinja").read_text(encoding="utf-8")
    words = make_tokenizer(template)
    prompt = render_chat(
        words, [{"role": "user", "content": "Hi"}], template_kwargs=NEEDS.get("", {})
    )
    limit = thought_limit(words, prompt, 5)
    assert limit is not None
    assert words.decode(limit.opens) == "<|channel|>analysis<|message|>"
    assert words.decode(limit.close) == "<|end|>"
