"""Draw: the tokens of one sequence, independent of whatever runs beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from keepwarm.engine.request import Sampling
from keepwarm.engine.sampling import Draw, draw_together, logprobs

NUM_VOCAB = 40


def row(values: Sequence[float]) -> mx.array:
    return mx.array([list(values)])


def noisy(seed: int = 0, num_vocab: int = NUM_VOCAB) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=(1, num_vocab)).astype(np.float32))


def drawing(prompt: Sequence[int] = (), **sampling: Any) -> Draw:
    return Draw(Sampling(**sampling), prompt=np.array(prompt, dtype=np.int32))


def drawn(draw: Draw, num_tokens: int, logits: mx.array | None = None) -> list[int]:
    logits = noisy() if logits is None else logits
    return [int(draw.draw(logits).item()) for _ in range(num_tokens)]


def support(draw: Draw, logits: mx.array, num_draws: int = 200) -> set[int]:
    return set(drawn(draw, num_draws, logits))


def test_seed_gives_the_same_tokens_whatever_is_drawn_in_between() -> None:
    alone = drawn(drawing(temperature=1.0, seed=7), 30)
    first, other = drawing(temperature=1.0, seed=7), drawing(temperature=1.0, seed=8)
    mixed = []
    for _ in range(30):
        mixed += drawn(first, 1)
        drawn(other, 2)
        mx.random.uniform()
    assert mixed == alone
    assert drawn(drawing(temperature=1.0, seed=8), 30) != alone


def test_draws_without_a_seed_differ() -> None:
    assert drawn(drawing(temperature=1.0), 30) != drawn(drawing(temperature=1.0), 30)


@pytest.mark.parametrize("seed", [-1, 2**64, 2**64 + 5, -(2**70), 10**40])
def test_any_integer_is_a_seed(seed: int) -> None:
    assert drawn(drawing(temperature=1.0, seed=seed), 9) == drawn(
        drawing(temperature=1.0, seed=seed), 9
    )


def test_global_random_state_is_left_alone() -> None:
    mx.random.seed(3)
    untouched = mx.random.uniform(shape=(4,)).tolist()
    mx.random.seed(3)
    drawn(drawing(temperature=1.0, seed=5, top_k=9, top_p=0.9, min_p=0.01), 5)
    assert mx.random.uniform(shape=(4,)).tolist() == untouched


def test_shares_follow_the_softmax_at_the_temperature() -> None:
    logits = row([math.log(0.6), math.log(0.3), math.log(0.1)])
    tokens = drawn(drawing(temperature=0.5, seed=1), 3000, logits)
    shares = np.bincount(tokens, minlength=3) / 3000
    expected = np.array([0.36, 0.09, 0.01]) / 0.46
    assert np.abs(shares - expected).max() < 0.03


@pytest.mark.parametrize("temperature", [1e-320, 1e-12, 1e300])
def test_extreme_temperatures_stay_within_the_numbers(temperature: float) -> None:
    tokens = support(drawing(temperature=temperature, seed=1), row([2.0, 1.0, 2.0]), 60)
    assert tokens == ({0, 1, 2} if temperature > 1 else {0, 2})


def test_top_k_leaves_the_k_likeliest() -> None:
    logits = noisy()
    likeliest = np.argsort(-np.array(logits)[0])
    assert support(drawing(temperature=9.0, top_k=3, seed=1), logits) == set(likeliest[:3])


def test_top_k_counts_exactly_among_equals() -> None:
    assert len(support(drawing(temperature=1.0, top_k=3, seed=1), mx.zeros((1, 9)))) == 3


@pytest.mark.parametrize("top_k", [NUM_VOCAB, NUM_VOCAB + 1, 10**9])
def test_top_k_beyond_the_vocabulary_is_no_limit(top_k: int) -> None:
    unlimited = support(drawing(temperature=50.0, seed=1), noisy(), 400)
    assert support(drawing(temperature=50.0, top_k=top_k, seed=1), noisy(), 400) == unlimited


def test_top_p_leaves_the_fewest_that_reach_it() -> None:
    logits = row(np.log([0.1, 0.5, 0.15, 0.25]))
    assert support(drawing(temperature=1.0, top_p=0.7, seed=1), logits) == {1, 3}
    assert support(drawing(temperature=1.0, top_p=0.8, seed=1), logits) == {1, 2, 3}


@pytest.mark.parametrize("top_p", [0.0, 1e-30])
def test_tiny_top_p_leaves_the_likeliest(top_p: float) -> None:
    assert support(drawing(temperature=1.0, top_p=top_p, seed=1), row([1.0, 3.0, 2.0])) == {1}


def test_top_p_is_the_share_of_what_top_k_left() -> None:
    logits = row(np.log([0.4, 0.3, 0.2, 0.1]))
    # Of 0.7, the first has 0.57.
    assert support(drawing(temperature=1.0, top_k=2, top_p=0.55, seed=1), logits) == {0}


def test_min_p_is_a_share_of_the_likeliest() -> None:
    logits = row(np.log([0.5, 0.3, 0.15, 0.05]))
    assert support(drawing(temperature=1.0, min_p=0.25, seed=1), logits) == {0, 1, 2}
    assert support(drawing(temperature=1.0, min_p=1.0, seed=1), logits) == {0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("num_bad", [1, NUM_VOCAB])
@pytest.mark.parametrize(
    "sampling", [{"temperature": 1.0, "top_p": 0.9}, {"min_p": 0.1}, {"top_k": 3}]
)
def test_numbers_that_are_none_give_some_token(
    bad: float, num_bad: int, sampling: dict[str, float]
) -> None:
    logits = np.array(noisy())
    logits[0, :num_bad] = bad
    draw = drawing(**{"temperature": 0.7, "seed": 1, **sampling})
    tokens = drawn(draw, 20, mx.array(logits))
    assert all(0 <= token < NUM_VOCAB for token in tokens)
    if num_bad == 1:
        assert (0 in tokens) is (bad == math.inf)


def test_logit_bias_moves_tokens_and_leaves_unknown_ids_out() -> None:
    bias = {3: 100.0, -1: 100.0, NUM_VOCAB: 100.0, 2**40: 100.0}
    assert drawn(drawing(logit_bias=bias), 2) == [3, 3]


def test_presence_penalty_is_paid_once_and_only_for_the_reply() -> None:
    # 0 falls behind 1 once it was said, and both stay before 2.
    draw = drawing(prompt=[0, 1, 2], presence_penalty=1.0)
    assert drawn(draw, 6, row([3.0, 2.5, 1.4])) == [0, 1, 0, 0, 0, 0]


def test_frequency_penalty_is_paid_each_time() -> None:
    draw = drawing(prompt=[0, 1, 2], frequency_penalty=1.0)
    assert drawn(draw, 5, row([3.0, 2.5, 1.4])) == [0, 1, 0, 1, 2]


def test_repetition_penalty_looks_at_the_prompt_too() -> None:
    logits = row([3.0, 2.0, -1.0])
    assert drawn(drawing(repetition_penalty=2.0), 2, logits) == [0, 1]
    assert drawn(drawing(prompt=[0, 10**6, -5], repetition_penalty=2.0), 1, logits) == [1]
    # Below zero a penalty multiplies.
    assert drawn(drawing(prompt=[0], repetition_penalty=2.0), 1, row([-2.0, -3.0])) == [1]


def test_processors_see_all_tokens_and_penalized_logits() -> None:
    seen = []

    def look(tokens: mx.array, logits: mx.array) -> mx.array:
        seen.append((tokens.tolist(), logits.tolist()[0]))
        return logits

    draw = drawing(prompt=[5, 6], frequency_penalty=1.0, processors=[look])
    assert drawn(draw, 2, row([3.0, 2.5])) == [0, 1]
    assert seen == [([5, 6], [3.0, 2.5]), ([5, 6, 0], [2.0, 2.5])]


@pytest.mark.parametrize(
    ("sampling", "is_greedy"),
    [
        ({}, True),
        ({"top_k": 3, "top_p": 0.5, "seed": 1}, True),
        ({"temperature": 0.1}, False),
        ({"logit_bias": {1: 1.0}}, False),
        ({"presence_penalty": 0.1}, False),
        ({"frequency_penalty": 0.1}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"processors": [lambda tokens, logits: logits]}, False),
    ],
)
def test_greedy_is_what_nothing_else_can_change(sampling: dict[str, Any], is_greedy: bool) -> None:
    assert drawing(**sampling).is_greedy is is_greedy
    assert not drawing(**sampling).needs_last


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
def test_logprobs_are_those_of_the_raw_logits_in_float32(dtype: mx.Dtype) -> None:
    logits = noisy().astype(dtype)
    chosen, ids, values = logprobs(logits, mx.array([4]), 5)
    exact = np.array(logits.astype(mx.float32))[0].astype(np.float64)
    exact -= np.log(np.exp(exact).sum())
    assert chosen.shape == (1,)
    assert chosen.dtype == values.dtype == mx.float32
    assert np.allclose(np.array(chosen), exact[4], atol=1e-5)
    assert np.allclose(np.array(values), np.sort(exact)[::-1][:5], atol=1e-5)
    assert np.allclose(exact[np.array(ids)], np.array(values), atol=1e-5)


@pytest.mark.parametrize(("num_top", "num_given"), [(0, 0), (1, 1), (NUM_VOCAB + 9, NUM_VOCAB)])
def test_logprobs_give_as_many_as_there_are(num_top: int, num_given: int) -> None:
    _, ids, values = logprobs(noisy(), mx.array([4]), num_top)
    assert ids.shape == values.shape == (num_given,)


def test_logprobs_are_always_numbers() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        chosen, _, values = logprobs(row([bad, 1.0, bad]), mx.array([0]), 3)
        assert np.isfinite(np.array(chosen)).all()
        assert np.isfinite(np.array(values)).all()


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.7, "top_k": 5, "seed": 2},
    {"temperature": 1.3, "top_p": 0.8, "seed": 3},
    {},
    {"temperature": 1.0, "min_p": 0.2, "top_k": 9, "top_p": 0.7, "seed": 4},
    {"temperature": 1.0, "presence_penalty": 1.0, "seed": 5},
    {"logit_bias": {3: 2.0}},
]


@pytest.mark.parametrize("which", [[0, 1, 2, 4], [3, 3], [3, 0, 5, 1, 6, 2], [0, 3], [5, 6]])
def test_drawn_together_each_row_gets_what_it_gets_alone(which: list[int]) -> None:
    logits = [mx.concatenate([noisy(10 * step + i) for i in which]) for step in range(12)]
    together, apart = ([drawing(**SETTINGS[i]) for i in which] for _ in range(2))
    for at_once in logits:
        rows = [at_once[i : i + 1] for i in range(len(which))]
        wanted = [int(draw.draw(row).item()) for draw, row in zip(apart, rows)]
        assert draw_together(together, at_once).tolist() == wanted
