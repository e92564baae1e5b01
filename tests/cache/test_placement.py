"""The schedule depends only on what lies before a stop, and thinning loses no more than it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.placement import LASTING, Placement, Stop, StopKind
from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt

PLACEMENTS = st.builds(
    lambda min_span, more, keep, thinning: Placement(min_span, min_span + more, keep, thinning),
    st.integers(1, 6),
    st.integers(0, 8),
    st.integers(0, 4),
    st.sampled_from([0.25, 0.5, 0.75]),
)


@st.composite
def prompts(draw: st.DrawFn, max_len: int = 50) -> Prompt:
    tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=max_len))
    marks = st.builds(Boundary, st.integers(1, len(tokens)), st.sampled_from(BoundaryKind))
    return Prompt(tokens, draw(st.lists(marks, max_size=8)))


def longer(prompt: Prompt, more: Prompt) -> Prompt:
    """`prompt` followed by `more`, with the boundaries of both."""
    behind = [Boundary(len(prompt) + b.position, b.kind) for b in more.boundaries]
    return Prompt([*prompt.tokens, *more.tokens], [*prompt.boundaries, *behind])


def upto(stops: Sequence[Stop], position: int) -> list[Stop]:
    return [stop for stop in stops if stop.position < position]


@given(placement=PLACEMENTS, prompt=prompts(), more=prompts())
def test_longer_prompt_has_the_same_stops(
    placement: Placement, prompt: Prompt, more: Prompt
) -> None:
    for schedule in (placement.schedule, placement.exact_schedule):
        ahead = schedule(longer(prompt, more))
        assert upto(ahead, len(prompt)) == upto(schedule(prompt), len(prompt))


def test_exact_mode_stops_at_messages_half_as_far_apart() -> None:
    prompt = messages_of(200, 260, 500, 800)
    assert [stop.position for stop in Placement().schedule(prompt)] == [800]
    assert [stop.position for stop in Placement().exact_schedule(prompt)] == [260, 800]


def messages_of(*ends: int) -> Prompt:
    return Prompt([1] * (ends[-1] + 10), [Boundary(at, BoundaryKind.MESSAGE) for at in ends])


@given(placement=PLACEMENTS, prompt=prompts())
def test_schedule_does_not_look_at_the_tokens(placement: Placement, prompt: Prompt) -> None:
    other = Prompt([7] * len(prompt), prompt.boundaries)
    assert placement.schedule(other) == placement.schedule(prompt)


@given(placement=PLACEMENTS, prompt=prompts())
def test_stops_rise_and_are_never_further_apart_than_a_step(
    placement: Placement, prompt: Prompt
) -> None:
    ends = [0, *(stop.position for stop in placement.schedule(prompt)), len(prompt)]
    assert all(0 <= b - a <= placement.prefill_step for a, b in pairwise(ends))
    assert all(b > a for a, b in pairwise(ends[:-1]))


@given(placement=PLACEMENTS, prompt=prompts())
def test_messages_make_a_stop_only_after_min_span(placement: Placement, prompt: Prompt) -> None:
    stops = placement.schedule(prompt)
    for before, stop in pairwise([Stop(0, StopKind.STEP), *stops]):
        if stop.kind is StopKind.MESSAGE:
            assert stop.position - before.position >= placement.min_span
        if stop.kind is StopKind.STEP:
            assert stop.position - before.position == placement.prefill_step


@given(placement=PLACEMENTS, prompt=prompts())
def test_system_and_marks_always_make_a_stop(placement: Placement, prompt: Prompt) -> None:
    stops = {stop.position for stop in placement.schedule(prompt)}
    always = (BoundaryKind.SYSTEM, BoundaryKind.MARK)
    assert {b.position for b in prompt.boundaries if b.kind in always} <= stops


@given(placement=PLACEMENTS, prompt=prompts())
def test_message_that_is_far_enough_from_the_stop_before_makes_one(
    placement: Placement, prompt: Prompt
) -> None:
    stops = [0, *(stop.position for stop in placement.schedule(prompt))]
    for boundary in prompt.boundaries:
        if boundary.kind is BoundaryKind.MESSAGE and boundary.position not in stops:
            before = max(stop for stop in stops if stop < boundary.position)
            assert boundary.position - before < placement.min_span


@pytest.mark.parametrize("kind", [BoundaryKind.GENERATION, BoundaryKind.PARAGRAPH])
def test_what_depends_on_what_follows_makes_no_stop_of_the_schedule(kind: BoundaryKind) -> None:
    prompt = Prompt([1] * 20, [Boundary(10, kind)])
    assert Placement(2, 100).schedule(prompt) == []
    assert Placement(2, 100).tail(prompt) == 19


@given(placement=PLACEMENTS, prompt=prompts(), start=st.integers(0, 49))
def test_prefill_ends_at_the_end_and_begins_after_the_start(
    placement: Placement, prompt: Prompt, start: int
) -> None:
    start = min(start, len(prompt) - 1)
    for stops in (placement.exact_stops(prompt, start), placement.stops(prompt, start)):
        assert stops[-1] == Stop(len(prompt), StopKind.END)
        assert [s.position for s in stops] == sorted({s.position for s in stops})
        assert all(start < stop.position for stop in stops)
        assert all(stop.kind is not StopKind.END for stop in stops[:-1])


@given(placement=PLACEMENTS, prompt=prompts(), data=st.data())
def test_prefill_from_any_stop_goes_on_as_a_cold_one(
    placement: Placement, prompt: Prompt, data: st.DataObject
) -> None:
    cold = placement.exact_stops(prompt, 0)
    start = data.draw(st.sampled_from([0, *(s.position for s in cold[:-1])]))
    assert placement.exact_stops(prompt, start) == [s for s in cold if s.position > start]


@given(
    placement=PLACEMENTS,
    prompt=prompts(),
    start=st.integers(0, 49),
    parted_at=st.none() | st.integers(1, 49),
)
def test_default_mode_also_stops_before_the_generation_prompt_and_where_others_may_go_on(
    placement: Placement, prompt: Prompt, start: int, parted_at: int | None
) -> None:
    start = min(start, len(prompt) - 1)
    tail = placement.tail(prompt)
    found = {stop.position: stop.kind for stop in placement.stops(prompt, start, parted_at)}
    kinds = {stop.position: stop.kind for stop in placement.schedule(prompt)}
    last_end = prompt.last_message_end or 0
    if last_end < tail and kinds.get(last_end) not in LASTING:
        kinds.pop(last_end, None)  # the tail is a few tokens further
    expected = {len(prompt), *(position for position in kinds if position > start)}
    expected |= {tail} if start < tail < len(prompt) else set()
    if parted_at is not None and placement.min_span <= parted_at - start < len(prompt) - start:
        expected.add(parted_at)
    for mark in prompt.boundaries:
        is_far = mark.position - start >= max(1, placement.min_span // 4)
        if mark.kind is BoundaryKind.PARAGRAPH and mark.position < len(prompt) and is_far:
            expected.add(mark.position)
    for position in questions(prompt) if len(prompt) - start <= 2 * placement.min_span else []:
        before = max([start, *(at for at in expected if at <= position)])
        if position - before >= max(1, placement.min_span // 8):
            expected.add(position)
    assert set(found) == expected


def questions(prompt: Prompt) -> list[int]:
    """Where the user's last two messages begin."""
    ends, found = prompt.ends, []
    for i in range(1, len(ends)):
        if ends[i].kind is BoundaryKind.USER and ends[i - 1].position < ends[i].position:
            found.append(ends[i - 1].position)
    return found[-2:]


def test_a_question_begins_where_it_may_be_edited() -> None:
    user, message = BoundaryKind.USER, BoundaryKind.MESSAGE
    marks = [(100, user), (300, message), (340, user), (500, message), (520, message), (600, user)]
    prompt = Prompt([1] * 610, [Boundary(*mark) for mark in marks])
    assert [stop.position for stop in Placement().stops(prompt, 100)] == [300, 520, 600, 610]
    assert [stop.position for stop in Placement().stops(prompt, 520)] == [600, 610]
    assert Placement().schedule(prompt) == [Stop(520, StopKind.MESSAGE)]


def test_a_short_text_before_a_question_gets_a_stop() -> None:
    """Other questions about it read nothing else."""
    marks = [(10, BoundaryKind.SYSTEM), (430, BoundaryKind.PARAGRAPH), (460, BoundaryKind.USER)]
    prompt = Prompt([1] * 470, [Boundary(*mark) for mark in marks])
    assert 430 in [stop.position for stop in Placement().stops(prompt, 0)]


def test_turn_of_a_few_words_is_read_in_one_pass() -> None:
    message = BoundaryKind.MESSAGE
    prompt = Prompt([1] * 200, [Boundary(150, message), Boundary(195, message)])
    placement = Placement()
    for start, expected in ((135, [195, 200]), (136, [200]), (150, [200]), (0, [195, 200])):
        stops = placement.stops(prompt, start, is_read_ahead=True)
        assert [stop.position for stop in stops] == expected
        assert [stop.position for stop in placement.stops(prompt, start)] == [195, 200]
    stops = placement.stops(prompt, 136, passes_tail=True, is_read_ahead=True)
    assert stops == [Stop(195, StopKind.TAIL, is_passed=True), Stop(200, StopKind.END)]
    wide = Placement(min_span=4096, prefill_step=4096)  # no more than what is kept of its end
    assert len(wide.stops(prompt, 135, is_read_ahead=True)) == 2


def test_behind_a_long_chunk_prefill_stops_for_its_logits_would_all_be_computed() -> None:
    prompt = Prompt([1] * 700, [Boundary(690, BoundaryKind.MESSAGE)])
    for start, is_passed in ((0, False), (635, False), (636, True)):
        for stops in (
            Placement().stops(prompt, start, passes_tail=True),
            Placement().row_stops(prompt, start),
        ):
            assert [stop.position for stop in stops] == [690, 700]
            assert [stop.is_passed for stop in stops] == [is_passed, False]


def test_no_chunk_is_longer_than_a_step() -> None:
    prompt = Prompt([1] * 490, [Boundary(250, BoundaryKind.MESSAGE)])
    placement = Placement(min_span=128, prefill_step=256)
    for stops in (
        placement.stops(prompt, 20, passes_tail=True, longest_end=10_000),
        placement.row_stops(prompt, 20, longest_end=10_000),
    ):
        read = [20, *(stop.position for stop in stops if not stop.is_passed)]
        assert max(b - a for a, b in pairwise(read)) <= 256


def test_with_a_head_by_itself_it_does_not_stop_there() -> None:
    for length, is_passed in ((700, True), (900, True), (901, False), (2948, True)):
        prompt = Prompt([1] * length, [Boundary(length - 10, BoundaryKind.MESSAGE)])
        for stops in (
            Placement().stops(prompt, 0, passes_tail=True, longest_end=900),
            Placement().row_stops(prompt, 0, longest_end=900),
        ):
            *_, tail, end = stops
            assert (tail.position, tail.is_passed) == (length - 10, is_passed)
            assert (end.position, end.is_passed) == (length, False)
        assert not Placement().stops(prompt, 0, longest_end=900)[-2].is_passed


@pytest.mark.parametrize("length", [12, 65, 700, 3000])
@pytest.mark.parametrize("behind", [10, 40, 64, 65, 300, 3000])
def test_logits_are_computed_of_few_tokens(length: int, behind: int) -> None:
    """Of the last chunk, that is: 2,048 rows of a large vocabulary are half a gigabyte."""
    prompt = Prompt([1] * length, [Boundary(length - 8, BoundaryKind.MESSAGE)])
    placement, start = Placement(), max(0, length - behind)
    for stops in (
        placement.row_stops(prompt, start),
        placement.stops(prompt, start),
        placement.stops(prompt, start, passes_tail=True),
        placement.stops(prompt, start, passes_tail=True, is_read_ahead=True),
        placement.stops(prompt, start, is_read_ahead=True),
    ):
        *before, last = [start, *(stop.position for stop in stops if not stop.is_passed)]
        assert last - before[-1] <= 64


@given(placement=PLACEMENTS, prompt=prompts(), start=st.integers(0, 50))
def test_rows_are_read_in_whole_steps_but_for_what_others_share(
    placement: Placement, prompt: Prompt, start: int
) -> None:
    start = min(start, len(prompt) - 1)
    stops = placement.row_stops(prompt, start)
    assert stops[-1] == Stop(len(prompt), StopKind.END)
    assert {stop.kind for stop in stops[:-1]} <= {"step", "system", "mark", "tail"}
    tail = placement.tail(prompt)
    assert {stop.position for stop in stops if stop.is_passed} == (
        {tail} if start < tail else set()
    )
    wanted = {b.position for b in prompt.boundaries if b.kind in ("system", "mark")}
    inside = {at for at in (*wanted, tail) if start < at < len(prompt)}
    assert inside <= {stop.position for stop in stops}
    positions = [start, *(stop.position for stop in stops)]
    assert all(0 < b - a <= placement.prefill_step for a, b in pairwise(positions))


def test_tail_is_the_end_of_the_last_message_or_one_token_before_the_end() -> None:
    placement = Placement()
    message, generation = BoundaryKind.MESSAGE, BoundaryKind.GENERATION
    assert placement.tail(Prompt([1] * 9, [Boundary(7, message), Boundary(8, generation)])) == 8
    assert placement.tail(Prompt([1] * 9, [Boundary(9, message)])) == 8
    assert placement.tail(Prompt([1] * 9)) == 8
    assert placement.tail(Prompt([1])) == 0


def chunks_of(placement: Placement, prompt: Prompt) -> list[tuple[int, int]]:
    ends = [0, *(s.position for s in placement.exact_schedule(prompt)), len(prompt)]
    return [(lo, hi) for lo, hi in pairwise(ends) if lo < hi]


@given(placement=PLACEMENTS, start=prompts(20), one=prompts(20), two=prompts(20))
def test_exact_keys_are_shared_by_whole_equal_chunks_only(
    placement: Placement, start: Prompt, one: Prompt, two: Prompt
) -> None:
    a, b = longer(start, one), longer(start, two)
    keys_a, keys_b = placement.exact_keys(a), placement.exact_keys(b)
    width = len(keys_a) // len(a)
    assert len(keys_b) == width * len(b)
    for chunk in chunks_of(placement, a):
        lo, hi = chunk
        same_tokens = a.tokens[lo:hi].tolist() == b.tokens[lo:hi].tolist()
        is_shared = keys_a[lo * width : hi * width] == keys_b[lo * width : hi * width]
        assert is_shared == (same_tokens and chunk in chunks_of(placement, b))
        first_is_shared = keys_a[lo * width : (lo + 1) * width] == keys_b[lo * width :][:width]
        if lo < len(b) and any(lo == other for other, _ in chunks_of(placement, b)):
            assert first_is_shared == is_shared


@given(placement=PLACEMENTS, prompt=prompts())
def test_default_keys_are_the_tokens(placement: Placement, prompt: Prompt) -> None:
    keys = placement.keys(prompt)
    assert [int.from_bytes(keys[i : i + 4], "little") for i in range(0, len(keys), 4)] == list(
        prompt.tokens
    )


KINDS = st.sampled_from([k for k in StopKind if k is not StopKind.END])
PATHS = st.dictionaries(st.integers(1, 300), KINDS, min_size=1, max_size=40).map(
    lambda found: [Stop(position, found[position]) for position in sorted(found)]
)
EVEN_PATHS = st.integers(1, 60).flatmap(
    lambda n: st.integers(1, 9).map(
        lambda step: [Stop(step * i, StopKind.MESSAGE) for i in range(1, n + 1)]
    )
)


def kept_by(placement: Placement, path: Sequence[Stop]) -> list[Stop]:
    dropped = set(placement.superfluous(path))
    return [stop for stop in path if stop not in dropped]


def assert_bound_holds(placement: Placement, path: Sequence[Stop], kept: Sequence[Stop]) -> None:
    """What `superfluous` promises for a prompt that parts anywhere on the path."""
    tip = path[-1].position
    for parted_at in range(1, tip + 1):
        before = max((s.position for s in path if s.position <= parted_at), default=0)
        found = max((s.position for s in kept if s.position <= parted_at), default=0)
        if found < before:  # thinning cost something here
            lost_from_tip = (tip - parted_at) / (1 - placement.thinning)
            assert tip - found <= lost_from_tip or parted_at - found <= placement.min_span


@given(placement=PLACEMENTS, path=PATHS | EVEN_PATHS)
def test_thinning_loses_no_more_than_its_bound(placement: Placement, path: list[Stop]) -> None:
    assert_bound_holds(placement, path, kept_by(placement, path))


@given(placement=PLACEMENTS, path=PATHS)
def test_thinning_never_drops_what_lasts_nor_the_tip_nor_the_last_few(
    placement: Placement, path: list[Stop]
) -> None:
    dropped = placement.superfluous(path)
    assert not [stop for stop in dropped if stop.kind in LASTING]
    assert path[-1] not in dropped
    assert not set(path[len(path) - placement.keep_recent :]) & set(dropped)
    assert dropped == sorted(set(dropped))
    assert set(dropped) <= set(path)


@given(placement=PLACEMENTS, path=PATHS | EVEN_PATHS)
def test_thinning_twice_drops_nothing_more(placement: Placement, path: list[Stop]) -> None:
    assert placement.superfluous(kept_by(placement, path)) == []


@given(placement=PLACEMENTS, path=PATHS | EVEN_PATHS)
def test_bound_holds_for_all_that_was_ever_there_as_a_path_grows(
    placement: Placement, path: list[Stop]
) -> None:
    kept: list[Stop] = []
    for stop in path:
        kept = kept_by(placement, [*kept, stop])
    assert_bound_holds(placement, path, kept)


@given(
    placement=PLACEMENTS,
    steps=st.lists(st.integers(1, 30), min_size=1, max_size=300),
)
def test_number_of_checkpoints_grows_with_the_logarithm_of_the_path(
    placement: Placement, steps: list[int]
) -> None:
    kept, at = [], 0
    for step in steps:
        at += step
        kept = kept_by(placement, [*kept, Stop(at, StopKind.MESSAGE)])
        # Of three neighbours that stay, the first lies further from the tip than the last by
        # a factor of 1 / (1 - thinning) at least.
        doublings = math.log(at + 1) / -math.log(1 - placement.thinning)
        assert len(kept) <= max(placement.keep_recent, 2 * doublings + 4)


def test_no_thinning_drops_nothing() -> None:
    path = [Stop(i, StopKind.MESSAGE) for i in range(1, 100)]
    assert Placement(1, 1, 0, 0.0).superfluous(path) == []


def test_ten_thousand_turns_keep_checkpoints_by_the_dozen() -> None:
    placement, kept = Placement(), []
    for turn in range(1, 10_001):
        kept = kept_by(placement, [*kept, Stop(600 * turn, StopKind.MESSAGE)])
    assert len(kept) <= 96


@pytest.mark.parametrize(
    "settings",
    [
        {"min_span": 0},
        {"min_span": 10, "prefill_step": 9},
        {"thinning": 1.0},
        {"thinning": -0.1},
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        Placement(**settings)  # type: ignore[arg-type]


def test_document_stays_at_rest_if_much_is_read_without_it() -> None:
    placement = Placement(min_span=10, prefill_step=20)
    for document, stays in ((40, True), (35, False)):
        path = [
            Stop(30, StopKind.STEP),
            Stop(document, StopKind.PARAGRAPH),
            Stop(50, StopKind.TAIL),
        ]
        dropped = placement.superfluous_at_rest(path, spacing=40)
        assert (path[1] not in dropped) == stays


def test_places_are_all_that_a_prefill_may_leave() -> None:
    marks = [(30, BoundaryKind.MESSAGE), (70, BoundaryKind.PARAGRAPH), (90, BoundaryKind.MESSAGE)]
    prompt = Prompt([1] * 95, [Boundary(*mark) for mark in marks])
    placement = Placement(min_span=10, prefill_step=100)
    assert placement.places(prompt) == [30, 70, 90]
    stops = {stop.position for stop in placement.stops(prompt, 0)}
    assert stops - {95} <= set(placement.places(prompt))
