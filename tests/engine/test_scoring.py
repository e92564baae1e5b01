"""How likely the model finds the tokens of a prompt: the figures of one plain pass, however much of
it came from the cache and however it was cut."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

from keepwarm.engine import scoring
from keepwarm.engine.request import Request
from keepwarm.errors import BadInput
from keepwarm.events import TokenScore
from tests.architectures.drive import random_tokens

from .engines import Bench, bench, model_of
from .test_engine import engine_of

KINDS = ["llama", "gpt_oss", "qwen3_5", "mamba2"]
SHARED = list(random_tokens(60, 0))


def plain(kind: str, tokens: list[int]) -> list[float]:
    """The log probabilities of all tokens but the first, from one pass."""
    logits = model_of(kind)(mx.array(tokens)[None])[0].astype(mx.float32)
    values = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    found = mx.take_along_axis(values[:-1], mx.array(tokens[1:])[:, None], axis=-1)
    return found[:, 0].tolist()  # type: ignore[no-any-return]


def choice(seed: int, length: int = 9) -> list[int]:
    return [*SHARED, *random_tokens(length, seed)]


def scored(made: Bench, tokens: list[int], start: int = 1, **settings: Any) -> Any:
    _, heard = made.ask(tokens, 0, scores_from=start, continues_text=True, **settings)
    made.run()
    return heard.result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_scores_are_those_of_one_plain_pass(kind: str, exact: bool) -> None:
    made = bench(kind, exact=exact)
    for seed in (1, 2, 3):
        result = scored(made, choice(seed))
        found = [score.logprob for score in result.scores]
        assert found == pytest.approx(plain(kind, choice(seed)), abs=1e-3)
        assert [score.token for score in result.scores] == choice(seed)[1:]
        assert (result.tokens, result.text) == ([], "")


@pytest.mark.parametrize("kind", KINDS)
def test_choices_behind_one_beginning_read_only_themselves(kind: str) -> None:
    made = bench(kind)
    first, second, third = (scored(made, choice(seed), len(SHARED)) for seed in (1, 2, 3))
    assert first.cached_tokens == 0
    assert second.cached_tokens == third.cached_tokens == len(SHARED) - 1
    for seed, result in ((1, first), (2, second), (3, third)):
        wanted = plain(kind, choice(seed))[len(SHARED) - 1 :]
        assert [s.logprob for s in result.scores] == pytest.approx(wanted, abs=1e-3)


def test_what_was_scored_before_is_not_scored_again() -> None:
    made = bench("qwen3_5")
    scored(made, choice(1))
    result = scored(made, choice(2))
    assert result.cached_tokens < len(SHARED) - 1  # nobody knew that prompts part here
    third = scored(made, choice(3))
    assert third.cached_tokens == len(SHARED) - 1
    found = [s.logprob for s in third.scores]
    assert found == pytest.approx(plain("qwen3_5", choice(3)), abs=1e-3)
    other = scored(made, choice(3), namespace="other")
    assert other.cached_tokens == 0


def test_pieces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "_PIECE_BYTES", 4 * 128 * 20)  # 20 tokens of this vocabulary
    made = bench("qwen3_5")
    lengths: list[int] = []
    took = scoring.Scores.take

    def take(self: Any, start: int, logits: mx.array) -> None:
        lengths.append(len(logits))
        took(self, start, logits)

    monkeypatch.setattr(scoring.Scores, "take", take)
    result = scored(made, choice(1))
    assert max(lengths) <= 20
    found = [s.logprob for s in result.scores]
    assert found == pytest.approx(plain("qwen3_5", choice(1)), abs=1e-3)


def test_a_reply_may_follow_the_scores() -> None:
    made = bench("llama")
    _, plain_reply = made.ask(choice(1), 4)
    made.run()
    _, heard = made.ask(choice(1), 4, scores_from=1, num_score_top=2)
    made.run()
    assert heard.tokens == plain_reply.tokens
    for score in heard.result.scores:
        assert isinstance(score, TokenScore)
        (likeliest, highest), (_, second) = score.top_logprobs
        assert highest >= second
        assert score.is_likeliest == (likeliest == score.token)


def test_engine_scores_prompts_in_order() -> None:
    with engine_of("qwen3_5") as engine:
        prompts = [choice(seed) for seed in range(6)]
        scores = list(engine.score(prompts, start=-9))
        for prompt, score in zip(prompts, scores):
            assert [t.token for t in score.tokens] == prompt[-9:]
            assert score.logprob == pytest.approx(sum(plain("qwen3_5", prompt)[-9:]), abs=1e-2)
            assert score.is_greedy == all(token.is_likeliest for token in score.tokens)
        greedy = [*SHARED]
        for _ in range(3):
            logits = model_of("qwen3_5")(mx.array(greedy)[None])[0, -1]
            greedy.append(int(mx.argmax(logits).item()))
        assert next(engine.score([greedy], start=-3)).is_greedy
        engine.call(lambda cache: cache.check())


def test_nothing_to_generate_is_bad_input_without_scores() -> None:
    with pytest.raises(BadInput, match="at least 1"):
        Request([1, 2], 0)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="negative"):
        Request([1, 2], 0, scores_from=-1)  # type: ignore[arg-type]
