"""The engine, stepped by hand on small real models: what each request gets, whatever runs
beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from keepwarm.cache.candidates import Newcomer
from keepwarm.cache.policy import Candidate
from keepwarm.engine.batch import Group
from keepwarm.engine.request import DecodeMode, Sampling
from keepwarm.events import Delta, Reading, Source
from tests.architectures.drive import prompt_of, random_tokens

from .engines import Bench, alone, bench

SYSTEM = random_tokens(48, 0)
KINDS = ["llama", "gpt_oss", "qwen3_5", "mamba2", "llama4"]


def question(seed: int, count: int = 20) -> list[int]:
    return random_tokens(count, 100 + seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decode", DecodeMode)
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_sequences_of_unequal_lengths_say_together_what_each_says_alone(
    kind: str, decode: DecodeMode, exact: bool
) -> None:
    made = bench(kind, exact=exact, decode=decode)
    prompts = [prompt_of([SYSTEM, question(i, 10 + 13 * i)]) for i in range(4)]
    heard = [made.ask(prompt, 12)[1] for prompt in prompts]
    made.run()
    assert [h.tokens for h in heard] == [alone(made, p, 12, exact=exact) for p in prompts]
    again = [made.ask(prompt, 12)[1] for prompt in prompts]
    made.run()
    assert [h.tokens for h in again] == [h.tokens for h in heard]
    # What lies between the last stop and the end is read again: here all but a few tokens hit.
    assert all(h.result.cached_tokens >= len(SYSTEM) for h in again)


def test_rows_that_come_and_go_change_nothing_for_the_others() -> None:
    made = bench()
    prompts = [prompt_of([SYSTEM, question(i, 5 + 9 * i)]) for i in range(5)]
    heard = []
    for i, prompt in enumerate(prompts):
        heard.append(made.ask(prompt, 6 + 5 * (i % 3))[1])
        for _ in range(4):
            made.core.step()
    made.run()
    wanted = [alone(made, prompt, 6 + 5 * (i % 3)) for i, prompt in enumerate(prompts)]
    assert [h.tokens for h in heard] == wanted


@pytest.mark.parametrize(("weights_bytes", "num_groups"), [(100_000, 2), (2_000_000, 1)])
def test_short_sequence_joins_a_long_one_when_padding_weighs_less_than_the_weights(
    weights_bytes: int, num_groups: int
) -> None:
    made = bench("llama", weights_bytes=weights_bytes)  # 2,048 bytes a row
    _, first = made.ask(prompt_of([random_tokens(500, 3)]), 200)
    made.step_until(lambda: bool(first.tokens))
    short = prompt_of([SYSTEM])
    _, second = made.ask(short, 3)
    made.step_until(lambda: len(made.core.batch) == 2)
    assert len(made.core.batch.groups) == num_groups
    made.run()
    assert second.tokens == alone(made, short, 3)


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_seed_decides_whatever_runs_beside(kind: str) -> None:
    made = bench(kind)
    prompt, sampling = prompt_of([SYSTEM, question(1)]), Sampling(temperature=1.0, seed=11)
    wanted = alone(made, prompt, 16, sampling)
    _, others = made.ask(prompt_of([SYSTEM, question(2)]), 30, sampling=Sampling(temperature=1.0))
    made.step_until(lambda: len(others.tokens) > 3)
    _, seeded = made.ask(prompt, 16, sampling=sampling)
    _, other_seed = made.ask(prompt, 16, sampling=Sampling(temperature=1.0, seed=12))
    made.run()
    assert seeded.tokens == wanted
    assert other_seed.tokens != wanted


def test_logprobs_are_those_of_the_own_request() -> None:
    made = bench()
    prompts = [prompt_of([SYSTEM, question(i, 8 + 7 * i)]) for i in range(3)]
    together = [made.ask(p, 6, top_logprobs=i)[1] for i, p in enumerate(prompts)]
    made.run()
    for i, prompt in enumerate(prompts):
        _, single = bench_with_one(made, prompt, i)
        for a, b in zip(deltas(together[i]), deltas(single), strict=True):
            assert a.token == b.token
            assert len(a.top_logprobs) == i
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
            assert [t for t, _ in a.top_logprobs] == [t for t, _ in b.top_logprobs]
            if i:  # greedy: the likeliest is the one that was drawn
                assert a.top_logprobs[0] == (a.token, a.logprob)


def bench_with_one(made: Bench, prompt: Any, top_logprobs: int) -> tuple[Any, Any]:
    single = bench(budget_bytes=0)
    asked = single.ask(prompt, 6, top_logprobs=top_logprobs)
    single.run()
    return asked


def deltas(heard: Any) -> list[Delta]:
    return [e for e in heard.events if isinstance(e, Delta) and e.token is not None]


def test_stop_text_is_cut_off_and_ends_the_reply() -> None:
    made = bench()
    prompt = prompt_of([SYSTEM])
    _, whole = made.ask(prompt, 12)
    made.run()
    words = whole.text.split()
    _, cut = made.ask(prompt, 12, stop=(f"{words[4]} {words[5]}",))
    made.run()
    assert cut.text.split() == words[:4]
    assert cut.result.finish_reason == "stop"
    assert len(cut.result.tokens) == 6


def test_end_of_text_token_ends_the_reply_and_is_not_shown() -> None:
    made = bench()
    prompt = prompt_of([SYSTEM])
    bias = Sampling(logit_bias={1: 100.0})  # <eos>
    _, heard = made.ask(prompt, 12, sampling=bias, ignore_eos=False)
    made.run()
    assert heard.result.finish_reason == "stop"
    assert heard.result.tokens == [1]
    assert heard.text == ""
    assert heard.result.timings.first_token_s > 0


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_quantized_rows_use_the_cache_and_take_turns(kind: str) -> None:
    made = bench(kind, kv_bits=8)
    prompts = [prompt_of([SYSTEM, question(i, 20 + i)]) for i in range(3)]
    first = [made.ask(prompt, 6)[1] for prompt in prompts]
    made.run()
    assert not made.core.batch.can_merge
    assert [h.tokens for h in first] == [alone(made, prompt, 6) for prompt in prompts]
    assert [h.result.cached_tokens >= 48 for h in first] == [False, True, True]


# Many at once


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "qwen3_5", "mamba2"])
@pytest.mark.parametrize("num_requests", [6, 32])
def test_cold_burst_with_one_system_prompt_reads_each_distinct_token_once(
    kind: str, num_requests: int
) -> None:
    made = bench(kind, max_running=num_requests)
    header = [5, 6, 7]  # what a template writes before each question
    prompts = [
        prompt_of([SYSTEM, [*header, 8 + i, *question(i, 12 + i % 5)]]) for i in range(num_requests)
    ]
    heard = [made.ask(prompt, 2)[1] for prompt in prompts]
    made.run()
    distinct = len({tuple(p.tokens[: n + 1].tolist()) for p in prompts for n in range(len(p))})
    assert sum(h.result.prefilled_tokens for h in heard) == distinct
    assert made.core.tally.prefilled_tokens == distinct
    assert {h.result.source for h in heard[1:]} == {Source.INFLIGHT}


def test_one_that_shares_a_prefix_waits_for_its_checkpoint_only() -> None:
    made = bench("qwen3_5")
    _, long = made.ask(prompt_of([SYSTEM, *[question(i, 30) for i in range(20)]]), 2)
    _, short = made.ask(prompt_of([SYSTEM, question(99)]), 2)
    made.step_until(lambda: short.is_over)
    assert not long.tokens
    assert short.result.cached_tokens == len(SYSTEM)
    assert short.result.source is Source.INFLIGHT
    made.run()
    assert made.core.tally.inflight_tokens == len(SYSTEM)


class NewcomersFirst:
    """Refuses whatever it can."""

    refuses = True

    def order(self, candidates: Sequence[Candidate], now: float) -> list[Candidate]:
        return sorted(candidates, key=lambda c: not isinstance(c.handle, Newcomer))


def test_what_others_wait_for_is_stored_however_little_it_is_worth() -> None:
    made = bench("qwen3_5")
    made.ask(prompt_of([question(7, 90), question(8, 90)]), 2)
    made.run()
    made.cache.ledger.budget_bytes = made.cache.ledger.held_bytes
    made.cache._evictor.policy = NewcomersFirst()
    heard = [made.ask(prompt_of([SYSTEM, question(i)]), 2)[1] for i in range(3)]
    made.run()
    assert [h.result.cached_tokens for h in heard] == [0, len(SYSTEM), len(SYSTEM)]
    assert made.cache.stats().events["refused_worth_less"] > 0  # what nobody waited for


def test_waiting_ends_when_the_other_one_is_cancelled() -> None:
    made = bench("qwen3_5")
    first, _ = made.ask(prompt_of([SYSTEM, question(1)]), 2)
    _, second = made.ask(prompt_of([SYSTEM, question(2)]), 2)
    first.cancel()
    made.run()
    assert second.result.finish_reason == "length"
    assert second.result.prefilled_tokens == second.result.prompt_tokens


def test_namespaces_share_nothing_in_flight() -> None:
    made = bench("llama")
    heard = [
        made.ask(prompt_of([SYSTEM, question(i)]), 2, namespace=name)[1]
        for i, name in enumerate(["a", "b"])
    ]
    made.run()
    assert [h.result.cached_tokens for h in heard] == [0, 0]
    assert [h.result.source for h in heard] == [Source.NONE, Source.NONE]


def test_streams_go_on_while_a_long_prompt_is_read() -> None:
    made = bench("qwen3_5")
    _, stream = made.ask(prompt_of([SYSTEM]), 400)
    made.step_until(lambda: len(stream.tokens) > 2)
    _, reader = made.ask(prompt_of([random_tokens(1000, 5)]), 2)
    gaps, seen = [], len(stream.tokens)
    while not reader.tokens:
        made.core.step()
        gaps.append(len(stream.tokens) - seen)
        seen = len(stream.tokens)
    assert gaps == [1] * len(gaps)  # a token of the stream after every chunk
    assert len(reader.readings) > 20
    assert max(b - a for a, b in zip(reader.readings, reader.readings[1:])) <= 40


def test_exact_mode_never_cuts_a_chunk_for_a_stream() -> None:
    made = bench("qwen3_5", exact=True)
    _, stream = made.ask(prompt_of([SYSTEM]), 400)
    made.step_until(lambda: len(stream.tokens) > 2)
    prompt = prompt_of([random_tokens(300, 5)])
    _, reader = made.ask(prompt, 4)
    made.step_until(lambda: reader.is_over)
    assert reader.tokens == alone(made, prompt, 4, exact=True)
    stops = [stop.position for stop in made.cache.placement.exact_schedule(prompt)]
    assert reader.readings == [0, *stops, len(prompt)]


def test_at_most_max_running_sequences_are_begun() -> None:
    made = bench("llama", max_running=2)
    heard = [made.ask(prompt_of([question(i)]), 6)[1] for i in range(5)]
    for _ in range(200):
        made.core.step()
        assert len(made.core.batch) + len(made.core.queue.started) <= 2
    assert all(h.is_over for h in heard)


# Leaving


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_cancelled_while_read_keeps_what_was_read(kind: str) -> None:
    made = bench(kind)
    prompt = prompt_of([random_tokens(300, 1)])
    sequence, heard = made.ask(prompt, 4)
    made.step_until(lambda: len(heard.readings) == 4)
    sequence.cancel()
    made.core.step()
    assert heard.result.finish_reason == "cancelled"
    assert not made.core.is_busy
    _, again = made.ask(prompt, 4)
    made.run()
    assert again.result.cached_tokens == heard.readings[-1] == 120


@pytest.mark.parametrize("kind", ["llama", "qwen3_5"])
def test_cancelled_while_it_speaks_keeps_prompt_and_half_the_reply(kind: str) -> None:
    made = bench(kind)
    prompt = prompt_of([SYSTEM, question(1)])
    sequence, heard = made.ask(prompt, 100)
    _, beside = made.ask(prompt_of([SYSTEM, question(2)]), 30)
    made.step_until(lambda: len(heard.tokens) >= 10)
    sequence.cancel()
    made.core.step()
    assert heard.result.finish_reason == "cancelled"
    made.run()
    assert beside.tokens == alone(made, prompt_of([SYSTEM, question(2)]), 30)
    follow = prompt.extended([*heard.result.tokens, 3, 4])
    _, again = made.ask(follow, 2)
    made.run()
    assert again.result.cached_tokens == len(prompt) + len(heard.result.tokens)


def test_cancelled_in_the_queue_never_starts() -> None:
    made = bench("llama", max_running=1)
    made.ask(prompt_of([SYSTEM]), 20)
    made.core.step()
    waiting, heard = made.ask(prompt_of([question(1)]), 4)
    made.core.step()
    waiting.cancel()
    made.run()
    assert heard.result.finish_reason == "cancelled"
    assert heard.readings == []


def test_listener_that_fails_gives_up_its_own_request_only() -> None:
    made = bench("llama")
    sequence, _ = made.ask(prompt_of([question(1)]), 50)
    sequence.on_event = lambda _: 1 / 0
    _, other = made.ask(prompt_of([question(2)]), 5)
    made.run()
    assert len(other.tokens) == 5
    assert len(sequence.tokens) < 5


# Faults


def test_draw_that_fails_is_that_requests_error_only() -> None:
    def broken(tokens: mx.array, logits: mx.array) -> mx.array:
        if len(tokens) > len(SYSTEM) + 8:
            raise ValueError("cannot go on")
        return logits

    made = bench()
    _, bad = made.ask(prompt_of([SYSTEM]), 20, sampling=Sampling(processors=(broken,)))
    prompt = prompt_of([SYSTEM, question(1)])
    _, good = made.ask(prompt, 20)
    made.run()
    assert str(bad.error) == "cannot go on"
    assert len(bad.tokens) > 2
    assert good.tokens == alone(made, prompt, 20)


class Faulty:
    """A model that fails when told to; everything else is the real one's."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.fails_on: Any = lambda tokens: False

    def __call__(self, tokens: mx.array, **settings: Any) -> mx.array:
        if self.fails_on(tokens):
            raise RuntimeError("out of luck")
        return self._model(tokens, **settings)


def faulty(made: Bench) -> Faulty:
    model = Faulty(made.model)
    made.core._model = made.core.batch._model = model
    return model


def test_prefill_that_fails_is_that_requests_error_only() -> None:
    made = bench()
    model = faulty(made)
    model.fails_on = lambda tokens: 77 in tokens[0].tolist() and tokens.shape[1] > 1
    _, bad = made.ask(prompt_of([[76, 77, 78]]), 4)
    prompt = prompt_of([[75, 74, 73]])
    _, good = made.ask(prompt, 4)
    made.run()
    assert str(bad.error) == "out of luck"
    assert good.tokens == alone(made, prompt, 4)


@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_step_that_fails_for_all_is_taken_again_one_by_one(exact: bool) -> None:
    made = bench(exact=exact)
    model = faulty(made)
    prompts = [prompt_of([SYSTEM, question(i, 10 + i)]) for i in range(3)]
    heard = [made.ask(prompt, 12)[1] for prompt in prompts]
    made.step_until(lambda: all(len(h.tokens) > 3 for h in heard))
    model.fails_on = lambda tokens: tokens.shape[0] > 1
    made.run()
    assert [h.tokens for h in heard] == [alone(made, p, 12, exact=exact) for p in prompts]


def test_first_token_is_told_before_the_model_reads_it() -> None:
    made = bench()
    model = faulty(made)
    prompt = prompt_of([SYSTEM, question(1)])
    _, heard = made.ask(prompt, 6)
    told_by_then: list[int] = []

    def noted(tokens: mx.array) -> bool:
        if tokens.shape[1] == 1:
            told_by_then.append(len(heard.tokens))
        return False

    model.fails_on = noted
    made.run()
    assert told_by_then == [1, 1, 2, 3, 4, 5]
    assert heard.tokens == heard.result.tokens == alone(made, prompt, 6)


def test_first_token_that_cannot_be_computed_is_that_requests_error_only() -> None:
    def broken(tokens: mx.array, logits: mx.array) -> mx.array:
        leaked: list[mx.array] = []

        def leak(x: mx.array) -> mx.array:
            leaked.append(x)
            return x

        mx.vmap(leak)(mx.ones((1, 1)))
        return logits + leaked[0].sum()  # fails when it is evaluated

    made = bench()
    prompt = prompt_of([SYSTEM, question(1)])
    _, good = made.ask(prompt, 12)
    made.step_until(lambda: len(good.tokens) > 3)
    _, bad = made.ask(prompt_of([SYSTEM]), 4, sampling=Sampling(processors=(broken,)))
    made.run()
    assert bad.error is not None
    assert good.tokens == alone(made, prompt, 12)


def test_token_that_was_told_and_never_read_is_in_the_result_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = bench()
    _, heard = made.ask(prompt_of([SYSTEM]), 8)
    plain = made.core._make_room

    def without_room() -> None:
        if heard.tokens:
            made.core._finish(dict.fromkeys(made.core._by_row.values(), "length"))
        plain()

    monkeypatch.setattr(made.core, "_make_room", without_room)
    made.run()
    assert len(heard.tokens) == 1
    assert heard.result.tokens == heard.tokens
    assert made.core.tally.counters(made.core.warmth.idle).generated_tokens == 1


@pytest.mark.parametrize("is_drawn_lost", [False, True])
def test_first_token_that_was_told_stays_when_the_step_after_it_fails(
    is_drawn_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench()
    model = faulty(made)
    if is_drawn_lost:
        monkeypatch.setattr(Group, "unread", lambda group: dict.fromkeys(group.rows))
    sampling = Sampling(temperature=5.0, seed=3)
    heard = [made.ask(prompt_of([SYSTEM, question(i)]), 8, sampling=sampling)[1] for i in range(2)]
    model.fails_on = lambda tokens: tokens.shape[0] > 1
    made.run()
    for each in heard:
        assert each.tokens == each.result.tokens
        assert len(each.tokens) == 8


def test_sequence_whose_steps_fail_alone_gets_the_error() -> None:
    made = bench()
    model = faulty(made)
    _, heard = made.ask(prompt_of([SYSTEM]), 12)
    made.step_until(lambda: len(heard.tokens) > 3)
    model.fails_on = lambda tokens: True
    made.run()
    assert str(heard.error) == "out of luck"
    model.fails_on = lambda tokens: False
    _, after = made.ask(prompt_of([SYSTEM]), 4)
    made.run()
    assert len(after.tokens) == 4


def test_readings_come_before_tokens_and_end_at_the_prompt() -> None:
    made = bench()
    prompt = prompt_of([SYSTEM, question(1)])
    _, heard = made.ask(prompt, 3)
    made.run()
    kinds = [type(event) for event in heard.events]
    assert kinds.index(Delta) > max(i for i, kind in enumerate(kinds) if kind is Reading)
    assert heard.readings[-1] == len(prompt)
    assert heard.result.timings.queue_s > 0
    assert heard.result.timings.first_token_s > 0


def test_short_prompts_are_read_in_one_step_while_that_holds_nobody_up() -> None:
    made = bench("qwen3_5", max_stall_s=1e6)
    prompts = [prompt_of([SYSTEM, question(i, 5 + i)]) for i in range(4)]
    heard = [made.ask(prompt, 6)[1] for prompt in prompts]
    made.core.step()
    assert [len(h.tokens) for h in heard] == [1] * 4
    assert [len(group) for group in made.core.batch.groups] == [4]
    made.run()
    assert [h.tokens for h in heard] == [alone(made, prompt, 6) for prompt in prompts]
