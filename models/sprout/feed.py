"""Worker processes that make training batches by seed, ahead of the accelerator.

Batch i holds the same samples whatever the number of workers, and comes in the order asked for.
One sample per row: the state of a DeltaNet layer would leak from one to the next.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import random
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_TRIES = 4
NUM_CALIBRATING = 16
WIDTH_STEP = 64  # rows are as wide as the longest of them, rounded up to whole chunks


@dataclass(frozen=True)
class Job:
    """`num_rows` training samples from `first_index` on, in rows of at most `length`."""

    number: int
    length: int
    first_index: int
    num_rows: int


@dataclass(frozen=True)
class ProbeJob:
    """Samples that are not trained on: of one kind and length, or those of a suite of eval.py."""

    name: str
    num_samples: int
    length: int | None = None  # None: `name` is that of a suite
    kind: str = "recall"


@dataclass
class Batch:
    job: Job
    ids: npt.NDArray[np.uint16]  # (rows, length), padded on the right
    is_target: npt.NDArray[np.bool_]  # (rows, length)
    num_real: int  # tokens that are not padding
    num_cut: int  # rows whose sample stayed too long and lost its end
    work_s: float
    num_uses: int = 0


@dataclass
class Probe:
    """Samples that are not trained on, ready to be answered."""

    name: str
    samples: Sequence[Any]
    prompts: Sequence[npt.NDArray[np.int32]]


class FeedFault(RuntimeError):
    """A worker failed or died; the message holds its traceback."""


def fitting_target(length: int, tokenizer: Any) -> int:
    """The length to ask the generator for so that few samples exceed `length`.

    It counts words, not tokens. The same samples calibrate everywhere: batches depend on it.
    """
    from models.sprout.encode import encode
    from models.sprout.samples import make_sample

    samples = (
        make_sample(random.Random(f"calibrate-{length}-{i}"), length)
        for i in range(NUM_CALIBRATING)
    )
    longest = max(len(encode(sample, tokenizer)[0]) for sample in samples)
    return int(length * min(1.5, length / longest))


def make_row(
    rng: random.Random, length: int, target_len: int, tokenizer: Any
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
    """One sample of at most `length` tokens, if the generator can; else the shortest it made."""
    from models.sprout.encode import encode
    from models.sprout.samples import make_sample

    best = None
    for _ in range(NUM_TRIES):
        row = encode(make_sample(rng, target_len), tokenizer)
        if best is None or len(row[0]) < len(best[0]):
            best = row
        if len(row[0]) <= length:
            break
        target_len = int(target_len * min(0.9, length / len(row[0])))
    assert best is not None
    return best


def make_batch(job: Job, target_len: int, seed: int, tokenizer: Any, pad_id: int) -> Batch:
    started = time.perf_counter()
    ids = np.full((job.num_rows, job.length), pad_id, dtype=np.uint16)
    is_target = np.zeros((job.num_rows, job.length), dtype=np.bool_)
    num_real = num_cut = width = 0
    for row in range(job.num_rows):
        rng = random.Random(f"train-{seed}-{job.first_index + row}")
        row_ids, row_targets = make_row(rng, job.length, target_len, tokenizer)
        row_len = min(len(row_ids), job.length)
        ids[row, :row_len] = row_ids[:row_len]
        is_target[row, :row_len] = row_targets[:row_len]
        num_real += row_len
        num_cut += len(row_ids) > job.length
        width = max(width, row_len)
    width = min(job.length, width + -width % WIDTH_STEP)
    ids, is_target = ids[:, :width].copy(), is_target[:, :width].copy()
    return Batch(job, ids, is_target, num_real, num_cut, time.perf_counter() - started)


def make_probe(job: ProbeJob, seed: int, tokenizer: Any) -> Probe:
    from models.sprout.encode import prompt_ids
    from models.sprout.eval import SUITES, held_out
    from models.sprout.samples import make_sample

    if job.length is None:
        (suite,) = [suite for suite in SUITES if suite.name == job.name]
        samples = held_out(suite, num_samples=job.num_samples)
    else:
        target_len = fitting_target(job.length, tokenizer)
        samples = []
        for i in range(job.num_samples):
            rng = random.Random(f"probe-{seed}-{job.length}-{i}")
            samples.append(make_sample(rng, target_len, job.kind))
    return Probe(job.name, samples, [prompt_ids(sample, tokenizer) for sample in samples])


def load_tokenizer(folder: Path) -> tuple[Any, int, int]:
    """The tokenizer, and the ids of padding and of the end of a turn."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        raise FileNotFoundError(f"{path}: make it first with `python -m models.sprout.tokenizer`")
    tokenizer = Tokenizer.from_file(str(path))
    pad_id, end_id = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    if pad_id is None or end_id is None:
        raise ValueError(f"{path}: no <|endoftext|> or no <|im_end|> in its vocabulary")
    return tokenizer, pad_id, end_id


def _work(jobs: Any, results: Any, seed: int, folder: Path) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        tokenizer, pad_id, _ = load_tokenizer(folder)
        targets: dict[int, int] = {}
        while (job := jobs.get()) is not None:
            if isinstance(job, ProbeJob):
                results.put(make_probe(job, seed, tokenizer))
                continue
            if job.length not in targets:
                targets[job.length] = fitting_target(job.length, tokenizer)
            results.put(make_batch(job, targets[job.length], seed, tokenizer, pad_id))
    except KeyboardInterrupt:
        pass
    except BaseException:
        results.put(traceback.format_exc())


class Feed:
    """Owned by the training loop. Start it before CUDA is touched: workers are forked."""

    def __init__(
        self, seed: int, folder: Path, *, num_workers: int, batch_tokens: int, max_uses: int
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._jobs, self._results = context.Queue(), context.Queue()
        self._workers = [
            context.Process(
                target=_work, args=(self._jobs, self._results, seed, folder), daemon=True
            )
            for _ in range(num_workers)
        ]
        for worker in self._workers:
            worker.start()
        self.batch_tokens, self.max_uses = batch_tokens, max_uses
        self.next_index = 0  # of the next sample; a resumed run goes on from the saved one
        self.num_replayed = self.num_fresh = self.num_real = self.num_cut = 0
        self.num_waiting_s = self.work_s = 0.0
        self._next_number = self._next_out = 0
        self._ready: dict[int, Batch] = {}
        self._probes: dict[str, Probe] = {}
        self._recent: deque[Batch] = deque(maxlen=256)

    def ask_probe(self, job: ProbeJob) -> None:
        self._jobs.put(job)

    def probe(self, name: str) -> Probe:
        """Waits for it if need be; asked for before with `ask_probe`."""
        while name not in self._probes:
            self._receive(timeout_s=120.0)
        return self._probes[name]

    def ask(self, pick_length: Callable[[], int]) -> None:
        """Keep every worker busy and as many batches again in waiting."""
        while self._next_number - self._next_out < 3 * len(self._workers):
            length = pick_length()
            num_rows = max(1, self.batch_tokens // length)
            self._jobs.put(Job(self._next_number, length, self.next_index, num_rows))
            self._next_number += 1
            self.next_index += num_rows

    def take(self, rng: random.Random) -> Batch:
        """The next batch; a recent one again, at most `max_uses` times, rather than wait."""
        while self._receive(timeout_s=None):
            pass
        if self._next_out not in self._ready:
            again = [batch for batch in self._recent if batch.num_uses < self.max_uses]
            if len(again) >= 16:
                batch = rng.choice(again)
                batch.num_uses += 1
                self.num_replayed += 1
                return batch
        started = time.perf_counter()
        while self._next_out not in self._ready:
            self._receive(timeout_s=120.0)
        self.num_waiting_s += time.perf_counter() - started
        batch = self._ready.pop(self._next_out)
        self._next_out += 1
        batch.num_uses = 1
        self.num_fresh += 1
        self._recent.append(batch)
        return batch

    def _receive(self, timeout_s: float | None) -> bool:
        """Put one result in its place; without a timeout, only if one is there already."""
        try:
            result = self._results.get(timeout_s is not None, timeout_s)
        except queue.Empty:
            if timeout_s is None:
                return False
            num_alive = sum(worker.is_alive() for worker in self._workers)
            raise FeedFault(f"no batch in {timeout_s:.0f} s, {num_alive} workers alive") from None
        if isinstance(result, str):
            raise FeedFault(f"a worker failed:\n{result}")
        if isinstance(result, Probe):
            self._probes[result.name] = result
        else:
            self._ready[result.job.number] = result
            self.num_real += result.num_real
            self.num_cut += result.num_cut
            self.work_s += result.work_s
        return True

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    def supply(self) -> float:
        """Real tokens per second that all workers together can make."""
        return self.num_real / self.work_s * len(self._workers) if self.work_s else 0.0

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()
        for worker in self._workers:
            worker.join(timeout=5)
        for channel in (self._jobs, self._results):
            channel.cancel_join_thread()
            channel.close()
