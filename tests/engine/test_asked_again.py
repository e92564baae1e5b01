"""The same prompt asked again is not read at all, and goes on as it did."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import KVCache

from keepwarm import Placement, PrefixCache
from keepwarm.cache.explain import Reason
from keepwarm.cache.placement import StopKind
from keepwarm.cache.space import Space
from keepwarm.cache.thinning import Thinning
from keepwarm.cache.tree import Node
from keepwarm.engine.prefill import Prefill, Warming
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from tests.architectures.drive import prompt_of, random_tokens
from tests.architectures.zoo import ARCHITECTURES
from tests.cache.stores import checkpoints

PARTS = [random_tokens(24, 0), random_tokens(40, 1), random_tokens(30, 2)]
PROMPT = prompt_of(PARTS)
OTHER = prompt_of([random_tokens(24, 0), random_tokens(40, 1), random_tokens(30, 3)])
PLACEMENT = Placement(min_span=16, prefill_step=40)
TAIL = PLACEMENT.tail(PROMPT)
REPLY = 5
KINDS = [
    "llama",
    "gpt_oss",
    "mamba2",
    "rwkv7",
    "jamba",
    "falcon_h1",
    "nemotron_h",
    "qwen3_next",
    "qwen3_5",
    "kimi_linear",
    "lfm2",
    "recurrent_gemma",
    "granitemoehybrid",
    "baichuan_m1",
    "plamo2",
    "bailing_hybrid",
]


def cache_of(model: Any, **options: Any) -> PrefixCache:
    return PrefixCache(model, **{"placement": PLACEMENT, "budget_bytes": 1 << 26, **options})


def next_logits(model: Any, prefill: Prefill) -> mx.array:
    """After one token of a reply."""
    return model(mx.array([[REPLY]]), cache=prefill.live.caches)


def ask(
    model: Any, cache: PrefixCache, prompt: Prompt = PROMPT, namespace: str = ""
) -> tuple[Prefill, mx.array]:
    """Read a prompt, and a reply behind it, and store that; what the model says to both."""
    with Prefill(model, cache, prompt, namespace=namespace) as prefill:
        list(prefill.steps())
        prefill.keep_end()
        said = next_logits(model, prefill)
        prefill.live.advance([REPLY])
        prefill.insert(prompt.extended([REPLY]), StopKind.REPLY)
        mx.eval(said)
    cache.check()
    return prefill, said


@pytest.fixture(scope="module")
def hybrid() -> Any:
    return ARCHITECTURES["qwen3_5"].build(mx.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_asked_again_is_not_read_and_goes_on_bit_for_bit(kind: str) -> None:
    model = ARCHITECTURES[kind].build(mx.float32)
    cache = cache_of(model)
    first, said = ask(model, cache)
    assert first.cached_len == 0
    for _ in range(2):  # what is kept is not used up
        with Prefill(model, cache, PROMPT) as again:
            assert (again.cached_len, again.is_done) == (len(PROMPT), True)
            assert again.reason is Reason.EXACT
            assert mx.array_equal(again.logits, first.logits)
            assert mx.array_equal(next_logits(model, again), said)
    cache.check()


def test_last_token_is_read_where_what_it_says_is_not_known() -> None:
    model = ARCHITECTURES["llama"].build(mx.float32)
    cache = cache_of(model)
    ask(model, cache)
    ask(model, cache, namespace="other")
    cache.finals.clear()
    assert Prefill(model, cache, PROMPT).cached_len == len(PROMPT) - 1
    ask(model, cache, namespace="other")
    assert Prefill(model, cache, PROMPT).cached_len == len(PROMPT) - 1


def test_state_at_the_end_is_kept_of_the_last_prompt_only(hybrid: Any) -> None:
    cache = cache_of(hybrid)
    first, said = ask(hybrid, cache)
    held_bytes = cache.ledger.held_bytes
    ask(hybrid, cache, OTHER)
    assert Prefill(hybrid, cache, OTHER).cached_len == len(OTHER)
    assert Prefill(hybrid, cache, PROMPT).cached_len == TAIL
    again, said_again = ask(hybrid, cache)
    assert mx.allclose(again.logits, first.logits, atol=1e-4)
    assert mx.allclose(said_again, said, atol=1e-4)
    assert Prefill(hybrid, cache, PROMPT).cached_len == len(PROMPT)
    cache.clear()
    ask(hybrid, cache)
    assert cache.ledger.held_bytes == held_bytes


def test_state_at_the_end_belongs_to_its_namespace(hybrid: Any) -> None:
    cache = cache_of(hybrid)
    ask(hybrid, cache, namespace="one")
    assert Prefill(hybrid, cache, PROMPT, namespace="two").cached_len == 0


def test_state_at_the_end_goes_before_anything_else(hybrid: Any) -> None:
    cache = cache_of(hybrid)
    ask(hybrid, cache)
    assert cache.last_end.end is not None
    num_checkpoints = cache.stats().num_checkpoints
    cache.evict_to(cache.ledger.held_bytes - 1)
    assert cache.last_end.end is None
    assert cache.stats().num_checkpoints == num_checkpoints - 1
    assert Prefill(hybrid, cache, PROMPT).cached_len == TAIL
    cache.check()


def test_state_at_the_end_evicts_nothing(hybrid: Any) -> None:
    cache = cache_of(hybrid)
    with Prefill(hybrid, cache, PROMPT) as prefill:
        list(prefill.steps())
        before = cache.stats()
        cache.lend(cache.ledger.free_bytes)  # there is no room now
        prefill.keep_end()
        assert (cache.last_end.end, cache.stats()) == (None, before)
        cache.lend(0)
        prefill.keep_end()
        assert cache.last_end.end is not None


def tail_of(cache: PrefixCache) -> tuple[Space, Node]:
    """The last checkpoint before the end of the prompt."""
    space = cache._spaces[""]
    found = space.deepest_checkpoint(space.tree.walk(PLACEMENT.keys(PROMPT)), TAIL)
    assert found is not None
    return space, found


@pytest.mark.parametrize("kind", ["qwen3_5", "baichuan_m1"])
def test_state_at_the_end_needs_the_rows_before_it_and_no_snapshot(kind: str) -> None:
    model = ARCHITECTURES[kind].build(mx.float32)
    cache = cache_of(model)
    _, said = ask(model, cache)
    cache._evictor._drop_checkpoint(*tail_of(cache))
    with Prefill(model, cache, PROMPT) as again:
        list(again.steps())
        assert mx.allclose(next_logits(model, again), said, atol=1e-4)
    # Windows go with the checkpoint that took them.
    assert (again.cached_len == len(PROMPT)) == (not cache._spaces[""].window_groups)
    assert again.reason is not Reason.FAULT
    cache._evictor.drop_below(*tail_of(cache))
    assert Prefill(model, cache, PROMPT).cached_len < TAIL
    cache.check()


DEAR = Placement(min_span=50, prefill_step=50)  # a snapshot weighs as much as 57 rows


def test_what_was_read_ahead_spares_the_checkpoint_before_the_end(hybrid: Any) -> None:
    cache = cache_of(hybrid, placement=DEAR)
    ask(hybrid, cache)
    ahead = prompt_of([*PARTS, random_tokens(20, 8)], tail=[])
    with Warming(hybrid, cache, ahead) as warming:
        list(warming.steps())
    cache.spare_tail(prompt_of([random_tokens(24, 7), *PARTS[1:], [3]]))
    cache.spare_tail(ahead, namespace="other")
    cache.spare_tail(ahead)
    assert tail_of(cache)[1].end == TAIL  # the reply hangs on it
    cache.discard(PROMPT.extended([REPLY]), len(PROMPT))
    cache.spare_tail(ahead)
    assert tail_of(cache)[1].end < TAIL
    assert Prefill(hybrid, cache, PROMPT).cached_len == len(PROMPT)
    assert Prefill(hybrid, cache, ahead.extended([1])).cached_len == len(ahead)
    cache.check()


def test_what_a_short_turn_went_on_from_stays_and_what_lies_before_goes(
    hybrid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no checkpoint of its own before its end: who edits it starts where it began."""
    monkeypatch.setattr(Thinning, "_spacing", lambda *_: 10_000)  # dear
    placement = Placement(min_span=100, prefill_step=100)
    cache = cache_of(hybrid, placement=placement)
    history = prompt_of(PARTS, tail=[])
    for known in (prompt_of(PARTS[:2], tail=[]), history):
        with Warming(hybrid, cache, known) as before:
            list(before.steps())
    words = random_tokens(8, 5)
    turn = prompt_of([*PARTS, words])
    with Prefill(hybrid, cache, turn, is_read_ahead=True) as prefill:
        assert list(prefill.steps()) == [len(turn)]  # in one pass
        prefill.keep_end()
        said = next_logits(hybrid, prefill)
    end = cache.last_end.end
    assert end is not None
    assert (end.anchor, end.is_from_tail) == (len(history), False)
    with Prefill(hybrid, cache, turn) as again:
        assert again.cached_len == len(turn)
        assert mx.array_equal(next_logits(hybrid, again), said)
    ahead = prompt_of([*PARTS, words, random_tokens(20, 8)], tail=[])
    with Warming(hybrid, cache, ahead) as warming:
        list(warming.steps())
    assert checkpoints(cache) == [24, 64, len(history), len(ahead)]
    for _ in range(2):
        cache.spare_tail(ahead)
        assert checkpoints(cache) == [24, len(history), len(ahead)]
    edited = prompt_of([*PARTS, random_tokens(8, 6)])
    assert Prefill(hybrid, cache, edited).cached_len == len(history)
    assert Prefill(hybrid, cache, turn).cached_len == len(turn)
    cache.check()


@pytest.mark.parametrize(
    ("placement", "namespace"),
    [
        (DEAR, "other"),  # what others asked is nothing to go by
        (Placement(min_span=90, prefill_step=90), ""),  # snapshots are cheap
        (Placement(min_span=50, prefill_step=50, thinning=0), ""),
    ],
)
def test_nothing_is_spared_otherwise(hybrid: Any, placement: Placement, namespace: str) -> None:
    cache = cache_of(hybrid, placement=placement)
    ask(hybrid, cache)
    ahead = prompt_of([*PARTS, random_tokens(20, 8)], tail=[])
    with Warming(hybrid, cache, ahead) as warming:
        list(warming.steps())
    cache.discard(PROMPT.extended([REPLY]), len(PROMPT))
    assert cache.last_end.end is not None
    cache.last_end.end = replace(cache.last_end.end, namespace=namespace)
    cache.spare_tail(ahead)
    assert tail_of(cache)[1].end == TAIL


@pytest.mark.parametrize("part", ["digest", "snapshots"])
def test_state_that_is_not_what_it_says_costs_nothing_but_itself(hybrid: Any, part: str) -> None:
    cache = cache_of(hybrid)
    first = ask(hybrid, cache)[0]
    assert cache.last_end.end is not None
    setattr(cache.last_end.end.checkpoint, part, b"of another prompt" if part == "digest" else {})
    with Prefill(hybrid, cache, PROMPT) as again:
        assert again.cached_len == TAIL
        list(again.steps())
        assert mx.allclose(again.logits, first.logits, atol=1e-4)
    assert cache.stats().cached_tokens == TAIL


def test_who_asks_without_knowing_what_comes_next_has_a_token_to_read(hybrid: Any) -> None:
    cache = cache_of(hybrid)
    ask(hybrid, cache)
    assert cache.match(PROMPT).cached_len == TAIL
    assert cache.match_to_end(PROMPT).cached_len == len(PROMPT)


def test_fault_in_what_lies_beside_the_tree_is_a_miss(
    hybrid: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_of(hybrid)
    ask(hybrid, cache)

    def broken(*_: object) -> None:
        raise RuntimeError("no such rows")

    monkeypatch.setattr("keepwarm.cache.ends.End.added_to", broken)
    assert cache.match_to_end(PROMPT).reason is Reason.FAULT


def test_state_that_goes_is_gone_though_a_reply_that_began_there_runs(hybrid: Any) -> None:
    cache = cache_of(hybrid)
    ask(hybrid, cache)
    with Prefill(hybrid, cache, PROMPT) as again:
        assert again.cached_len == len(PROMPT)
        assert again.match.end is None
        mx.eval([layer.state for layer in again.live.caches])
        before, nbytes = mx.get_active_memory(), cache.last_end.held_bytes
        for layer in again.live.caches:  # as its next step does with those that it shares
            if not isinstance(layer, KVCache):
                layer.cache = [entry + 0 for entry in layer.cache]
                mx.eval(layer.cache)
        assert mx.get_active_memory() >= before
        after = mx.get_active_memory()
        cache.last_end.let_go()
        gc.collect()
        assert after - mx.get_active_memory() >= nbytes


def test_more_than_a_generation_prompt_is_not_kept_twice(hybrid: Any) -> None:
    cache = cache_of(hybrid, placement=Placement(min_span=16, prefill_step=400))
    prompt = prompt_of(PARTS, tail=random_tokens(300, 9))  # as with half a reply behind it
    ask(hybrid, cache, prompt)
    assert cache.last_end.end is None


def test_exact_mode_reads_along_its_schedule_whatever_is_known() -> None:
    model = ARCHITECTURES["llama"].build(mx.float32)
    cache = cache_of(model, exact=True)
    for _ in range(2):
        with Prefill(model, cache, PROMPT) as prefill:
            list(prefill.steps())
            prefill.keep_end()
    assert 0 < prefill.cached_len < len(PROMPT)


def test_second_question_about_a_document_reads_the_question_only(hybrid: Any) -> None:
    cache = cache_of(hybrid)
    document = random_tokens(70, 4)

    def asked(seed: int) -> Prompt:
        tokens = [*document, *random_tokens(9, seed), 1, 2, 3]
        marks = [(70, BoundaryKind.PARAGRAPH), (79, BoundaryKind.MESSAGE)]
        return Prompt(tokens, [Boundary(*mark) for mark in marks])

    ask(hybrid, cache, asked(5))
    second, _ = ask(hybrid, cache, asked(6))
    assert second.cached_len == 70
    cold, _ = ask(hybrid, cache_of(hybrid), asked(6))
    assert mx.allclose(second.logits, cold.logits, atol=1e-4)


def test_end_whose_conversation_is_gone_is_a_plain_miss(hybrid: Any) -> None:
    cache = cache_of(hybrid)
    ask(hybrid, cache)
    cache._spaces.clear()
    assert cache.match_to_end(PROMPT).reason is Reason.COLD


def test_windows_at_the_end_evict_nothing() -> None:
    model = ARCHITECTURES["gpt_oss"].build(mx.float32)
    cache = cache_of(model)
    with Prefill(model, cache, PROMPT) as prefill:
        list(prefill.steps())
        before = cache.stats()
        cache.lend(cache.ledger.free_bytes)
        prefill.keep_end()
        assert cache.stats() == before


@pytest.mark.parametrize("kind", ["llama", "gpt_oss", "qwen3_5"])
def test_reply_that_was_stored_in_parts_goes_whole(kind: str) -> None:
    model = ARCHITECTURES[kind].build(mx.float32)
    cache = cache_of(model)
    with Prefill(model, cache, PROMPT) as prefill:
        list(prefill.steps())
        prefill.keep_end()
        said = PROMPT
        for part in (random_tokens(30, 5), random_tokens(30, 6)):
            said = said.extended(part)
            model(mx.array([part]), cache=prefill.live.caches)
            prefill.live.advance(part)
            prefill.insert(said, StopKind.REPLY)
    cache.discard(said, len(PROMPT))
    assert cache.stats().num_tokens == (TAIL if kind == "qwen3_5" else len(PROMPT))
    assert Prefill(model, cache, PROMPT).cached_len == len(PROMPT)
    cache.check()
