"""The curriculum lengthens rows by recall, and by the clock only when it must."""

import random

from models.sprout.curriculum import Curriculum, Plan

PLAN = Plan(total_s=1000.0, lengths=(128, 256, 512))


def test_recall_above_the_mark_lengthens_by_one_stage() -> None:
    curriculum = Curriculum(PLAN)
    move = curriculum.observe(10.0, 0.99)
    assert move is not None
    assert (move.to_len, move.is_forced) == (256, False)
    assert curriculum.length == 256


def test_recall_at_the_mark_stays_while_there_is_time() -> None:
    curriculum = Curriculum(PLAN)
    assert curriculum.observe(10.0, 0.9) is None
    assert curriculum.length == 128


def test_late_stage_is_forced_so_that_every_later_one_gets_its_least() -> None:
    curriculum = Curriculum(PLAN)
    # Decay from 800 s; 100 s kept for the longest rows, 30 s for the stage between.
    assert curriculum.observe(669.0, 0.1) is None
    move = curriculum.observe(670.0, 0.1)
    assert move is not None
    assert move.is_forced
    assert curriculum.observe(699.0, 0.1) is None
    assert curriculum.observe(700.0, 0.1) is not None
    assert curriculum.is_last


def test_last_stage_never_moves() -> None:
    curriculum = Curriculum(PLAN, stage=2)
    assert curriculum.observe(999.0, 1.0) is None
    assert curriculum.length == 512


def test_a_quarter_of_the_batches_stays_shorter_after_lengthening() -> None:
    curriculum = Curriculum(PLAN, stage=1)
    picked = [curriculum.pick_length(random.Random(i), 100.0) for i in range(2000)]
    assert 0.22 < picked.count(128) / 2000 < 0.28
    assert set(picked) == {128, 256}


def test_most_batches_are_shorter_at_the_last_stage() -> None:
    curriculum = Curriculum(PLAN, stage=2)
    picked = [curriculum.pick_length(random.Random(i), 100.0) for i in range(2000)]
    assert 0.36 < picked.count(512) / 2000 < 0.44
    assert set(picked) == {128, 256, 512}


def test_first_stage_has_only_its_own_length() -> None:
    curriculum = Curriculum(PLAN)
    assert {curriculum.pick_length(random.Random(i), 900.0) for i in range(50)} == {128}


def test_all_lengths_share_the_decay_evenly() -> None:
    curriculum = Curriculum(PLAN, stage=2)
    picked = [curriculum.pick_length(random.Random(i), 800.0) for i in range(3000)]
    assert all(900 < picked.count(length) < 1100 for length in PLAN.lengths)


def test_rate_warms_up_holds_and_falls_to_nothing() -> None:
    curriculum = Curriculum(PLAN)
    assert curriculum.rate(0.0, 0) == 0.01
    assert curriculum.rate(100.0, 99) == 1.0
    assert curriculum.rate(800.0, 5000) == 1.0
    assert curriculum.rate(900.0, 5000) == 0.5
    assert curriculum.rate(1000.0, 5000) == 0.0
    assert curriculum.rate(2000.0, 5000) == 0.0


def test_state_survives_a_resume() -> None:
    curriculum = Curriculum(PLAN)
    curriculum.observe(10.0, 0.95)
    resumed = Curriculum(PLAN)
    resumed.restore(curriculum.state())
    assert resumed == curriculum
