"""Batches are the same whatever the number of workers, and come in order."""

import random
from pathlib import Path

import numpy as np
import pytest

from models.sprout.feed import (
    Feed,
    Job,
    ProbeJob,
    fitting_target,
    load_tokenizer,
    make_batch,
    make_probe,
)

FOLDER = Path(__file__).parents[3] / "src" / "keepwarm" / "model" / "sprout"


def _take(num_workers: int, num_batches: int) -> list:
    feed = Feed(5, FOLDER, num_workers=num_workers, batch_tokens=1000, max_uses=1)
    lengths = iter([192, 256] * 50)
    try:
        batches = []
        for _ in range(num_batches):
            feed.ask(lambda: next(lengths))
            batches.append(feed.take(random.Random(0)))
        return batches
    finally:
        feed.close()


def test_batches_do_not_depend_on_the_number_of_workers() -> None:
    one, two = _take(1, 4), _take(2, 4)
    for a, b in zip(one, two):
        assert a.job.length == b.job.length
        assert np.array_equal(a.ids, b.ids)
        assert np.array_equal(a.is_target, b.is_target)


def test_no_sample_comes_twice() -> None:
    firsts = [(batch.job.first_index, batch.job.num_rows) for batch in _take(2, 4)]
    assert firsts == [(0, 5), (5, 3), (8, 5), (13, 3)]


def test_rows_are_padded_on_the_right_and_learn_no_padding() -> None:
    tokenizer, pad_id, end_id = load_tokenizer(FOLDER)
    target_len = fitting_target(256, tokenizer)
    batch = make_batch(Job(0, 256, 0, 6), target_len, 5, tokenizer, pad_id)
    assert batch.num_cut == 0
    assert batch.ids.shape[1] % 64 == 0
    for ids, is_target in zip(batch.ids, batch.is_target):
        row_len = len(np.trim_zeros((ids != pad_id).astype(int), "b"))
        assert not is_target[row_len:].any()
        assert is_target.any()
        assert ids[is_target][-1] == end_id


def test_missing_tokenizer_says_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"models\.sprout\.tokenizer"):
        load_tokenizer(tmp_path)


def test_probes_are_the_samples_of_a_suite_or_of_a_length() -> None:
    tokenizer, _, _ = load_tokenizer(FOLDER)
    at_length = make_probe(ProbeJob("recall at 256", 3, 256), 5, tokenizer)
    of_suite = make_probe(ProbeJob("tool", 3), 5, tokenizer)
    assert {sample.kind for sample in at_length.samples} == {"recall"}
    assert {sample.kind for sample in of_suite.samples} == {"tool"}
    assert all(100 < len(prompt) < 256 for prompt in at_length.prompts)


def test_batches_that_were_used_up_are_not_given_again() -> None:
    feed = Feed(5, FOLDER, num_workers=1, batch_tokens=192, max_uses=2)
    try:
        taken = []
        for step in range(60):
            feed.ask(lambda: 192)
            taken.append(feed.take(random.Random(step)).job.number)
    finally:
        feed.close()
    assert max(taken.count(number) for number in set(taken)) <= 2
    fresh = list(dict.fromkeys(taken))
    assert fresh == sorted(fresh)
