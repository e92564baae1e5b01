"""What only a model with meaning can show: cached and cold conversations give the same, right
answers, and a damaged state gives wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import mlx.core as mx
import pytest

from keepwarm import Engine, EngineSettings, Placement, PrefixCache, Request, load, render_chat
from keepwarm.events import Result
from keepwarm.state.attention import PlainKV
from keepwarm.state.base import Arrays, Snapshot
from keepwarm.state.recurrent import RecurrentState

Message = dict[str, Any]
Conversation = list[Message]

# Checkpoints at every message of short conversations.
PLACEMENT = Placement(min_span=32, prefill_step=256)
NUM_USERS = 32
NAMES = ("Anna", "Bruno", "Carla", "David", "Emma", "Felix", "Greta", "Hugo")
TOWNS = ("Bergen", "Lund", "Porto", "Turin", "Ghent", "Basel", "Riga", "Tartu")


@dataclass
class Talk:
    """An engine on sprout, asked in whole conversations."""

    engine: Engine
    tokenizer: Any

    def ask(self, messages: Conversation, max_tokens: int = 160) -> tuple[str, Result]:
        prompt = render_chat(self.tokenizer, messages)
        result = self.engine.stream(Request(prompt, max_tokens)).result
        return content_of(result.text), result

    def turn(self, messages: Conversation, question: str) -> tuple[str, Result]:
        """Asks, and adds question and answer to the conversation. Mutates it."""
        messages.append({"role": "user", "content": question})
        answer, result = self.ask(messages)
        messages.append({"role": "assistant", "content": answer})
        return answer, result


def content_of(text: str) -> str:
    """A reply without its thought."""
    return text.rpartition("</think>")[2].removesuffix("<|im_end|>").strip()


@contextmanager
def talking(budget_bytes: int = 1 << 30, *, exact: bool = True, **settings: Any) -> Iterator[Talk]:
    model_and_tokenizer: list[Any] = []

    def load_it() -> Any:
        model_and_tokenizer.extend(load())
        return tuple(model_and_tokenizer)

    def make_cache(model: Any) -> PrefixCache:
        return PrefixCache(model, budget_bytes=budget_bytes, exact=exact, placement=PLACEMENT)

    engine = Engine(load_it, make_cache=make_cache, settings=EngineSettings(**settings))
    with engine:
        engine.wait_ready()
        yield Talk(engine, model_and_tokenizer[1])
        engine.call(PrefixCache.check)


def home_facts(seed: int) -> dict[str, str]:
    rng = Random(seed)
    return dict(zip(rng.sample(NAMES, 6), rng.sample(TOWNS, 6)))


def opening(homes: dict[str, str]) -> Conversation:
    told = " ".join(f"{name} lives in {town}." for name, town in homes.items())
    return [{"role": "system", "content": told}]


def asked(name: str) -> str:
    return f"Where does {name} live?"


def is_right(answer: str, town: str) -> bool:
    """It names the town and no other."""
    return [other for other in TOWNS if other in answer] == [town]


def converse(talk: Talk, homes: dict[str, str], names: Sequence[str]) -> list[str]:
    """The answers of one conversation that asks for these, one after the other."""
    messages = opening(homes)
    return [talk.turn(messages, asked(name))[0] for name in names]


def cold(conversations: Sequence[Conversation]) -> list[str]:
    """What is answered to each with nothing in the cache."""
    with talking(budget_bytes=0) as talk:
        return [talk.ask(messages)[0] for messages in conversations]


def test_answers_are_right_and_the_same_after_a_restart() -> None:
    homes = home_facts(1)
    names = list(homes)[:4]
    with talking() as talk:
        first = converse(talk, homes, names)
        again = converse(talk, homes, names)
    with talking() as talk:
        after = converse(talk, homes, names)
    assert all(is_right(answer, homes[name]) for answer, name in zip(first, names))
    assert first == again == after


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "default"])
def test_cached_turns_answer_as_cold_ones(exact: bool) -> None:
    homes = home_facts(2)
    seen: list[Conversation] = []
    with talking(exact=exact) as talk:
        messages, answers, cached = opening(homes), [], []
        for name in homes:
            seen.append([*messages, {"role": "user", "content": asked(name)}])
            answer, result = talk.turn(messages, asked(name))
            answers.append(answer)
            cached.append(result.cached_tokens)
    assert all(is_right(answer, town) for answer, town in zip(answers, homes.values()))
    assert all(num_tokens > 0 for num_tokens in cached[1:])
    assert answers == cold(seen)


def test_branches_remember_their_own_past() -> None:
    """One conversation, told on in six ways: each knows its own way and no other."""
    homes = home_facts(3)
    trunk = opening(homes)
    with talking() as talk:
        talk.turn(trunk, asked("Anna" if "Anna" in homes else next(iter(homes))))
        branches = []
        for town in TOWNS[:6]:
            branch = [*trunk]
            talk.turn(branch, f"My sister lives in {town}.")
            branches.append(branch)
        answers = []
        for branch in reversed(branches):
            branch.append({"role": "user", "content": "Where does my sister live?"})
            answer, result = talk.ask(branch)
            assert result.cached_tokens > 0
            answers.append(answer)
    assert all(is_right(a, town) for a, town in zip(reversed(answers), TOWNS))
    assert answers == cold(list(reversed(branches)))


def test_evictions_cost_time_and_no_answers() -> None:
    """Six conversations in turn, in a cache that holds about one of them."""
    with talking(budget_bytes=2_500_000) as talk:
        homes = [home_facts(seed) for seed in range(10, 16)]
        talks = [opening(each) for each in homes]
        for i in range(3):
            for each, messages in zip(homes, talks):
                name = list(each)[i]
                answer, _ = talk.turn(messages, asked(name))
                assert is_right(answer, each[name])
        events = talk.engine.call(lambda cache: cache.stats().events)
        lost = ("evicted_leaves", "evicted_checkpoints", "refused_worth_less")
        assert sum(events.get(name, 0) for name in lost) > 0
    seen = [messages[:-1] for messages in talks]
    assert [messages[-1]["content"] for messages in talks] == cold(seen)


def test_32_users_at_once_each_get_their_own_answer() -> None:
    homes = home_facts(4)
    rng = Random(5)
    secrets = [(rng.choice(TOWNS), rng.choice(list(homes))) for _ in range(NUM_USERS)]

    def user(talk: Talk, town: str, name: str) -> list[str]:
        messages = opening(homes)
        talk.turn(messages, f"My brother lives in {town}.")
        return [talk.turn(messages, q)[0] for q in ("Where does my brother live?", asked(name))]

    with talking() as talk, ThreadPoolExecutor(NUM_USERS) as pool:
        answers = list(pool.map(lambda secret: user(talk, *secret), secrets))
    for (mine, others), (town, name) in zip(answers, secrets):
        assert is_right(mine, town)
        assert is_right(others, homes[name])


def flipped_states(patch: pytest.MonkeyPatch) -> None:
    """The states of recurrent layers come back with the other sign."""
    restore = RecurrentState.restore

    def flipped(self: RecurrentState, snapshot: Snapshot) -> Any:
        cache = restore(self, snapshot)
        cache.cache = [None if array is None else -array for array in cache.cache]
        return cache

    patch.setattr(RecurrentState, "restore", flipped)


def shifted_rows(patch: pytest.MonkeyPatch) -> None:
    """The keys of attention come back one place off."""
    rebuild = PlainKV.rebuild

    def rolled(self: PlainKV, position: int, rows: Sequence[Arrays], reserve: int) -> Any:
        cache = rebuild(self, position, rows, reserve)
        cache.keys = mx.roll(cache.keys, 1, axis=2)
        return cache

    patch.setattr(PlainKV, "rebuild", rolled)


def num_right_homes(talk: Talk) -> int:
    homes = home_facts(6)
    answers = converse(talk, homes, list(homes))
    return sum(is_right(answer, town) for answer, town in zip(answers, homes.values()))


def num_right_starts(talk: Talk) -> int:
    messages = [{"role": "system", "content": "Start every answer with Verily."}]
    questions = ("My cat is called Mia.", "What is my cat called?", "My car is red.", "hello")
    questions += ("What colour is my car?", "What is 4 + 5?")
    return sum(talk.turn(messages, each)[0].startswith("Verily") for each in questions)


@pytest.mark.parametrize(
    ("plant", "num_right"), [(shifted_rows, num_right_homes), (flipped_states, num_right_starts)]
)
def test_a_damaged_state_shows_as_wrong_answers(
    plant: Callable[[pytest.MonkeyPatch], None],
    num_right: Callable[[Talk], int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with talking() as talk:
        assert num_right(talk) == 6
    plant(monkeypatch)
    with talking() as talk:
        assert num_right(talk) < 6
