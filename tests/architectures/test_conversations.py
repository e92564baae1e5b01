"""Conversations that branch, are edited, lose their thoughts and call tools, on every model.

After each prompt the logits are those of a cold run, and as much was reused as layer kinds and
schedule allow: `Account` computes that bound by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import pytest

from keepwarm.cache.explain import Refusal
from keepwarm.cache.placement import StopKind
from keepwarm.cache.store import PrefixCache
from keepwarm.prompt.boundaries import Prompt

from .drive import (
    PLACEMENT,
    Account,
    Run,
    bits,
    feed,
    prompt_of,
    random_tokens,
    read,
    read_cold,
)
from .zoo import ARCHITECTURES, Architecture

Span = list[int]
OPEN = [1, 2, 3]  # the generation prompt
SYSTEM = random_tokens(24, 0)
DOCUMENT = random_tokens(45, 1)


@dataclass(frozen=True)
class Turn:
    """A prompt, and what the model is made to answer."""

    name: str
    prompt: Prompt
    reply: Sequence[int] = ()


def turns() -> Iterator[Turn]:
    """One long story, in which every kind of reuse comes up."""
    user = [random_tokens(n, 10 + n) for n in (12, 21, 18, 9)]
    answer = [random_tokens(n, 40 + n) for n in (15, 19, 11)]
    thought = random_tokens(22, 70)
    first = [SYSTEM, user[0]]
    yield Turn("first turn, with a thought", prompt_of(first, OPEN), [*thought, *answer[0]])
    # The template drops the thought from history: prompt + reply is no prefix of this one.
    second = [*first, [*OPEN, *answer[0]], user[1]]
    yield Turn("thought stripped", prompt_of(second, OPEN), answer[1])
    # Append-only from here on: the reply stands in the history as it was decoded.
    third = [*second, [*OPEN, *answer[1]], user[2]]
    yield Turn("extended by the reply", prompt_of(third, OPEN), answer[2])
    yield Turn("regenerated", prompt_of(third, OPEN))
    # A tool loop keeps the thought: the history grows by call and result.
    call = [*OPEN, *random_tokens(13, 80)]
    result = random_tokens(30, 81)
    yield Turn("tool result", prompt_of([*third, call, result], OPEN))
    more = [call, result, [*OPEN, *random_tokens(8, 82)], random_tokens(17, 83)]
    yield Turn("second tool result", prompt_of([*third, *more], OPEN))
    edited = [*second[:3], random_tokens(14, 90), [*OPEN, *answer[2]], user[3]]
    yield Turn("second turn edited", prompt_of(edited, OPEN))
    yield Turn("another user, same system", prompt_of([SYSTEM, random_tokens(33, 91)], OPEN))
    for i in range(3):
        asked = [SYSTEM, [*DOCUMENT, *random_tokens(10 + i, 95 + i)]]
        yield Turn(f"same document, question {i}", prompt_of(asked, OPEN))
    yield Turn("nothing in common", prompt_of([random_tokens(30, 99)], OPEN))
    yield Turn("a single token", Prompt([5]))


CASES = [pytest.param(a, id=name) for name, a in ARCHITECTURES.items()]

# Rounding does not depend on the cache, so one architecture of each kind stands for the others
# in bfloat16; `make slow` runs them all.
IN_BFLOAT16 = ("qwen3", "deepseek_v3", "gpt_oss", "llama4", "mamba2", "qwen3_5", "falcon_h1")


def _default_cases() -> Iterator[Any]:
    for name, architecture in ARCHITECTURES.items():
        yield pytest.param(architecture, mx.float32, id=f"{name}-float32")
        marks = [] if name in IN_BFLOAT16 else [pytest.mark.slow]
        yield pytest.param(architecture, mx.bfloat16, id=f"{name}-bfloat16", marks=marks)


DEFAULT_CASES = list(_default_cases())


def cache_for(model: Any, *, exact: bool) -> PrefixCache:
    return PrefixCache(model, exact=exact, placement=PLACEMENT, budget_bytes=1 << 28)


@pytest.mark.parametrize("architecture", CASES)
def test_exact_conversations_reuse_the_bound_and_give_cold_bits(
    architecture: Architecture,
) -> None:
    model = architecture.build(mx.float32)
    cache = cache_for(model, exact=True)
    assert cache.layout is not None
    account = Account(cache.layout, exact=True)
    for turn in turns():
        expected = account.bound(turn.prompt)
        run = read(model, cache, turn.prompt)
        cold = read_cold(model, turn.prompt, PLACEMENT.exact_stops(turn.prompt, 0))
        assert bits(run.logits) == bits(cold.logits), turn.name
        assert run.cached_len == expected, turn.name
        account.add(turn.prompt, run.stored_at)
        if turn.reply:
            refused = _reply(model, cache, turn, run)
            assert refused is Refusal.OFF_SCHEDULE, turn.name


@pytest.mark.parametrize(("architecture", "dtype"), DEFAULT_CASES)
def test_default_conversations_reuse_the_bound_and_agree_with_cold(
    architecture: Architecture, dtype: mx.Dtype
) -> None:
    model = architecture.build(dtype)
    cache = cache_for(model, exact=False)
    assert cache.layout is not None
    account = Account(cache.layout, exact=False)
    allowed = _allowed(model, dtype)
    for turn in turns():
        expected = account.bound(turn.prompt)
        run = read(model, cache, turn.prompt)
        assert run.cached_len == expected, turn.name
        cold = read_cold(model, turn.prompt, PLACEMENT.stops(turn.prompt, 0))
        error = _distance(run.logits, cold.logits)
        assert error <= allowed, f"{turn.name}: {error:.3g} of the spread, allowed {allowed:.3g}"
        account.add(turn.prompt, run.stored_at)
        if turn.reply:
            assert _reply(model, cache, turn, run) is None
            account.add(turn.prompt.extended(turn.reply), [run.live.position])


def _reply(model: Any, cache: PrefixCache, turn: Turn, run: Run) -> Refusal | None:
    """Decode the reply token by token and store where it ends."""
    for token in turn.reply:
        feed(model, run.live, [token])
    read_prompt = turn.prompt.extended(turn.reply)
    return cache.insert(read_prompt, run.live, kind=StopKind.REPLY).refusal


def _allowed(model: Any, dtype: mx.Dtype) -> float:
    """How far a restored run may be from a cold one, in units of the logits' spread.

    A few times what other cuts of a cold run make of the same prompt, decoding included (some
    models decode along another formula than they prefill): rounding is all that may differ.
    """
    prompt = next(turn.prompt for turn in turns() if turn.name == "second tool result")
    cold = read_cold(model, prompt, PLACEMENT.stops(prompt, 0)).logits
    chunked = _fed(model, prompt, range(7, len(prompt), 7))
    decoded = _fed(model, prompt, range(len(prompt) // 2, len(prompt)))
    noise = max(_distance(chunked, cold), _distance(decoded, cold))
    return 6 * noise + (1e-4 if dtype == mx.float32 else 0.05)


def _distance(logits: mx.array, reference: mx.array) -> float:
    difference = mx.abs(logits.astype(mx.float32) - reference.astype(mx.float32)).max()
    return float((difference / mx.std(reference.astype(mx.float32))).item())


def _fed(model: Any, prompt: Prompt, cuts: Sequence[int]) -> mx.array:
    """The last logits of a cold run that is cut at these positions."""
    live = PrefixCache(model, budget_bytes=0).fresh()
    for cut in [*cuts, len(prompt)]:
        logits = feed(model, live, prompt.tokens[live.position : cut])
    return logits
