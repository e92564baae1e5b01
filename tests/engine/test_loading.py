"""Loading from disk beside running streams: nobody else waits, and the bits are those of a cold run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest

from keepwarm.cache.disk.files import Files
from keepwarm.events import Source
from keepwarm.prompt.boundaries import Prompt
from tests.architectures.drive import prompt_of, random_tokens
from tests.cache.disk.folders import crash, disk_at, flushed, tier_of
from tests.engine.engines import Bench, alone, bench

PROMPT = prompt_of([random_tokens(24, 0), random_tokens(40, 1), random_tokens(30, 2)])
OTHER = prompt_of([random_tokens(20, 5), random_tokens(30, 6)])


class Gate(Files):
    """A disk that answers when it is told to."""

    def __init__(self) -> None:
        self.is_open = Event()
        self.is_open.set()
        self.num_reads = 0

    def read(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        assert self.is_open.wait(60)
        self.num_reads += offset > 0
        return super().read(fd, buffers, offset)


@pytest.fixture(params=["qwen3", "gpt_oss", "qwen3_5"])
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


REPLY = 4


def next_turn(made: Bench) -> Prompt:
    """What follows the reply to PROMPT."""
    return PROMPT.extended([*alone(made, PROMPT, REPLY), *random_tokens(20, 7)])


def restarted(architecture: str, folder: Path, gate: Gate, **settings: float) -> Bench:
    """An engine that has PROMPT and its reply on its disk, and nothing else."""
    first = bench(architecture, disk=disk_at(folder))
    tier_of(first.cache)
    first.ask(PROMPT, REPLY)
    first.run()
    flushed(first.cache)
    crash(first.cache)
    again = bench(architecture, disk=disk_at(folder, files=gate, **settings))
    tier_of(again.cache)
    return again


def test_request_is_answered_from_disk_with_the_tokens_of_a_cold_run(
    architecture: str, tmp_path: Path
) -> None:
    made = restarted(architecture, tmp_path, Gate())
    prompt = next_turn(made)
    _, heard = made.ask(prompt)
    made.run()
    result = heard.result
    assert result.source is Source.DISK
    assert result.cached_tokens == len(PROMPT) + REPLY
    assert result.disk_bytes > 0
    assert 0 < result.timings.load_s < 10
    assert result.tokens == alone(made, prompt)
    flushed(made.cache)
    assert made.cache.ledger.staged_bytes == 0
    _, heard = made.ask(prompt)
    made.run()
    assert heard.result.source is Source.RAM
    crash(made.cache)


def test_others_are_served_while_one_waits_and_nothing_spins(tmp_path: Path) -> None:
    gate = Gate()
    made = restarted("qwen3_5", tmp_path, gate)
    prompt = next_turn(made)
    gate.is_open.clear()
    _, waiting = made.ask(prompt)
    _, served = made.ask(OTHER, 12)
    made.step_until(lambda: served.is_over)
    assert served.result.source is Source.NONE
    assert waiting.events == []
    made.step_until(lambda: not made.core.step())  # nothing to do until the disk answers
    assert made.core.is_busy
    news = Event()
    tier_of(made.cache).on_news = news.set
    gate.is_open.set()
    assert news.wait(10)
    made.run()
    assert waiting.result.source is Source.DISK
    assert waiting.tokens == alone(made, prompt)
    crash(made.cache)


def test_two_requests_for_one_prefix_load_it_once(tmp_path: Path) -> None:
    gate = Gate()
    made = restarted("qwen3_5", tmp_path, gate)
    prompt = next_turn(made)
    gate.num_reads = 0
    gate.is_open.clear()
    _, one = made.ask(prompt)
    _, two = made.ask(prompt)
    num_files = len(tier_of(made.cache)._reading.loads[0].found.uses)
    made.core.step()
    assert len(tier_of(made.cache)._reading.loads) == 1
    gate.is_open.set()
    made.run()
    assert one.tokens == two.tokens == alone(made, prompt)
    assert one.result.source is two.result.source is Source.DISK
    assert gate.num_reads == num_files
    crash(made.cache)


def test_load_past_its_deadline_is_read_cold(tmp_path: Path) -> None:
    gate = Gate()
    made = restarted("qwen3_5", tmp_path, gate, deadline_s=0.05)
    prompt = next_turn(made)
    gate.is_open.clear()
    _, heard = made.ask(prompt)
    made.run(1_000_000)
    assert heard.result.source is Source.NONE
    assert heard.result.cached_tokens == 0
    assert heard.tokens == alone(made, prompt)
    gate.is_open.set()
    flushed(made.cache)
    crash(made.cache)


def test_disk_that_is_slower_than_reading_is_not_asked(tmp_path: Path) -> None:
    made = restarted("qwen3_5", tmp_path, Gate())
    prompt = next_turn(made)
    tier = tier_of(made.cache)
    tier._shelf.counts["loads"] = 1
    tier._reading.bytes_per_s = 1.0
    _, heard = made.ask(prompt)
    made.run()
    assert heard.result.source is Source.NONE
    crash(made.cache)


def test_cancelled_request_leaves_nothing_behind(tmp_path: Path) -> None:
    gate = Gate()
    made = restarted("qwen3_5", tmp_path, gate)
    prompt = next_turn(made)
    gate.is_open.clear()
    sequence, heard = made.ask(prompt)
    made.core.step()
    sequence.cancel()
    made.core.step()
    assert heard.result.finish_reason == "cancelled"
    assert not made.core.is_busy
    gate.is_open.set()
    flushed(made.cache)
    assert made.cache.ledger.staged_bytes == 0
    crash(made.cache)


def test_state_that_does_not_fit_into_ram_is_read_cold(tmp_path: Path) -> None:
    made = restarted("qwen3_5", tmp_path, Gate())
    prompt = next_turn(made)
    made.cache.ledger.budget_bytes = 1000
    _, heard = made.ask(prompt)
    made.run()
    assert heard.result.source is Source.NONE
    assert tier_of(made.cache).stats().events["no_room_in_ram"]
    crash(made.cache)
