"""Where prefill stops, and which checkpoints stay. Pure functions of positions, no mlx.

The *schedule* of a prompt decides how its prefill is cut into chunks. It depends only on the
tokens and boundaries before each stop, never on what is cached, so that a cold run and a run
from a checkpoint do the same arithmetic.

    boundaries     S           m     m              m            (S: end of tools + system)
    schedule      |S|          |     .              |        |   (stops at least min_span apart,
                                                                  at most prefill_step)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np

from keepwarm.errors import BadInput
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt

# Bytes of a key of the tree: a token id; in exact mode a token id or the hash of a chunk.
KEY_WIDTH = 4
EXACT_KEY_WIDTH = 8

# The most tokens of a turn that is read in one pass, with a state that goes on from before it.
SHORT_TURN = 64

# Of min_span, the part from which on a stop is worth a pass: before a question, and behind a text
# that other questions may follow.
_SHORT, _TEXT = 8, 4
# In exact mode, which stops nowhere else, the part of it from which on the end of a message is.
_EXACT = 2
# Of the tokens to be read, in min_spans: the most behind which the user's last messages get stops.
_SOON = 2
# So many of the user's last messages are likely to be edited.
_NUM_QUESTIONS = 2

# Boundaries at which prefill always stops, however short the span before them.
_ALWAYS = (BoundaryKind.SYSTEM, BoundaryKind.MARK)


class StopKind(StrEnum):
    """Why prefill stops at a position; also the kind of the checkpoint taken there."""

    SYSTEM = "system"  # end of tools + system
    HEAD = "head"  # end of the tools, or of a block of the system part
    MARK = "mark"  # the client asked for it
    MESSAGE = "message"  # end of a message
    USER = "user"  # end of a message in which the user speaks
    PARAGRAPH = "paragraph"  # end of a long text before the last words of a message
    STEP = "step"  # no boundary came for prefill_step tokens
    TAIL = "tail"  # last boundary before the generation prompt
    BRANCH = "branch"  # another prompt was seen to part here
    REPLY = "reply"  # end of a decoded reply
    END = "end"  # end of the prompt: no checkpoint of the tree


# The kinds that a checkpoint can have.
KEPT = tuple(kind for kind in StopKind if kind is not StopKind.END)

# What thinning does not touch: these are where other conversations start from. (At rest a system
# prompt of less than min_span tokens is no such place.)
LASTING = (StopKind.SYSTEM, StopKind.HEAD, StopKind.MARK, StopKind.BRANCH)


@dataclass(frozen=True, slots=True, order=True)
class Stop:
    """`position` tokens have been read when prefill stops here; one that is passed is read over,
    and stored from behind."""

    position: int
    kind: StopKind
    is_passed: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """The settings of schedule and thinning. All lengths are in tokens."""

    min_span: int = 512
    prefill_step: int = 2048
    keep_recent: int = 3  # the end of a prompt, of its reply, and of what was read ahead
    thinning: float = 0.125

    def __post_init__(self) -> None:
        if not 0 < self.min_span <= self.prefill_step:
            raise BadInput(
                f"min_span must lie between 1 and prefill_step, got {self.min_span}"
                f" and {self.prefill_step}"
            )
        if self.keep_recent < 0:
            raise BadInput(f"keep_recent cannot be negative, got {self.keep_recent}")
        if not 0.0 <= self.thinning < 1.0:
            raise BadInput(f"thinning must lie in [0, 1), got {self.thinning}")

    def schedule(self, prompt: Prompt) -> list[Stop]:
        """The stops of `prompt` in rising order, its end not included."""
        return self._schedule(prompt, prompt.ends, self.min_span)

    def exact_schedule(self, prompt: Prompt) -> list[Stop]:
        """The stops of `prompt` in exact mode, which has no others: they lie nearer together."""
        return self._schedule(prompt, prompt.ends, max(1, self.min_span // _EXACT))

    def _schedule(self, prompt: Prompt, ends: Sequence[Boundary], distance: int) -> list[Stop]:
        """With stops at `ends`, as far as they lie `distance` tokens apart."""
        stops: list[Stop] = []
        at = 0
        for boundary in ends:
            while boundary.position - at > self.prefill_step:
                at += self.prefill_step
                stops.append(Stop(at, StopKind.STEP))
            far_enough = boundary.position - at >= distance
            if far_enough or (boundary.kind in _ALWAYS and boundary.position > at):
                at = boundary.position
                stops.append(Stop(at, StopKind(boundary.kind)))
        while len(prompt) - at > self.prefill_step:
            at += self.prefill_step
            stops.append(Stop(at, StopKind.STEP))
        return stops

    def is_on_schedule(self, prompt: Prompt, cuts: Sequence[int]) -> bool:
        """Whether a prefill that was cut there, and stands at the last, has read along the
        schedule of exact mode."""
        stops = [stop.position for stop in self.exact_schedule(prompt)]
        return bool(cuts) and list(cuts) == stops[: len(cuts)]

    def keys(self, prompt: Prompt) -> bytes:
        """What the tree compares: the token ids."""
        return prompt.tokens.astype("<i4").tobytes()

    def exact_keys(self, prompt: Prompt) -> bytes:
        """What the tree compares in exact mode: the token ids, cut into the schedule's chunks.

        The first key of a chunk is the hash of the whole chunk, so that two prompts share a
        chunk only when all of it is the same. With mixtures of experts even a row before the
        first differing token depends on the tokens after it: they decide how many rows each
        expert multiplies at once.
        """
        keys = prompt.tokens.astype("<i8")
        ends = [stop.position for stop in self.exact_schedule(prompt)]
        for lo, hi in zip([0, *ends], [*ends, len(prompt)], strict=True):
            if lo < hi:
                chunk = hashlib.blake2b(prompt.tokens[lo:hi].tobytes(), digest_size=8).digest()
                keys[lo] = np.frombuffer(chunk, dtype="<i8")[0]
        return keys.tobytes()

    def exact_stops(self, prompt: Prompt, start: int) -> list[Stop]:
        """The stops of a prefill that begins at `start`, up to the end, along the schedule."""
        stops = [s for s in self.exact_schedule(prompt) if start < s.position < len(prompt)]
        return [*stops, Stop(len(prompt), StopKind.END)]

    def stops(
        self,
        prompt: Prompt,
        start: int,
        parted_at: int | None = None,
        *,
        passes_tail: bool = False,
        is_read_ahead: bool = False,
        longest_end: int = SHORT_TURN,
    ) -> list[Stop]:
        """The stops of a prefill that begins at `start`, up to the end, in the default mode.

        Besides the schedule it stops before the generation prompt, so that the next turn can
        start there (with `passes_tail` it does not stop behind up to `longest_end` tokens: layers
        still have what they had a few tokens ago; nor behind a few words, where `is_read_ahead`
        says that they will be read again while nobody waits); behind a long text that the last
        words of a message may be about, for there may be others; before the user's last two
        messages, which are edited more often than any other; and at `parted_at`, where a stored
        prompt went another way: a third one may come.
        """
        end, tail = len(prompt), self.tail(prompt)
        found = self._between(self.schedule(prompt), start, end)
        last_end = prompt.last_message_end
        if last_end in found and start < last_end < tail and found[last_end].kind not in LASTING:
            del found[last_end]  # a few tokens further is as good, for one pass instead of two
        is_short = start > 0 and end - start <= min(SHORT_TURN, self.min_span // 8)
        if start < tail and (passes_tail or not (is_short and is_read_ahead)):
            found.setdefault(tail, Stop(tail, _tail_kind(prompt, tail)))
        more = [(parted_at, StopKind.BRANCH, self.min_span)] if parted_at is not None else []
        more += [
            (mark.position, StopKind.PARAGRAPH, max(1, self.min_span // _TEXT))
            for mark in prompt.boundaries
            if mark.kind is BoundaryKind.PARAGRAPH
        ]
        for position, kind, distance in more:
            if distance <= position - start and position < end:
                found.setdefault(position, Stop(position, kind))
        # Of a long history each pass costs more than is likely to be gained.
        for position in _questions(prompt) if end - start <= _SOON * self.min_span else []:
            before = max((at for at in found if at <= position), default=start)
            if position - max(start, before) >= max(1, self.min_span // _SHORT):
                found.setdefault(position, Stop(position, StopKind.MESSAGE))
        return self._with_end(found, prompt, start, longest_end if passes_tail else 0)

    def row_stops(self, prompt: Prompt, start: int, *, longest_end: int = SHORT_TURN) -> list[Stop]:
        """As `stops`, where any token can be restored once its rows are there: neither the ends of
        messages nor the generation prompt need a stop, and every stop is one more pass over the
        weights."""
        shared = [end for end in prompt.boundaries if end.kind in _ALWAYS]
        found = self._between(self._schedule(prompt, shared, self.min_span), start, len(prompt))
        tail = self.tail(prompt)
        if start < tail:
            found.setdefault(tail, Stop(tail, _tail_kind(prompt, tail)))
        return self._with_end(found, prompt, start, longest_end)

    @staticmethod
    def _between(stops: Sequence[Stop], start: int, end: int) -> dict[int, Stop]:
        return {stop.position: stop for stop in stops if start < stop.position < end}

    def _with_end(
        self, found: dict[int, Stop], prompt: Prompt, start: int, longest_end: int
    ) -> list[Stop]:
        """The stops in order, and the end. The one before the generation prompt is passed where
        the last chunk is no longer than `longest_end`."""
        end, tail = len(prompt), self.tail(prompt)
        before = max((position for position in found if position < tail), default=start)
        if tail in found and end - before <= min(longest_end, max(SHORT_TURN, self.prefill_step)):
            found[tail] = replace(found[tail], is_passed=True)
        return [*sorted(found.values()), Stop(end, StopKind.END)]

    def tail(self, prompt: Prompt) -> int:
        """The last position that a next request is likely to share.

        With a template that is the end of the last message, or of what it writes before every reply,
        if a thinking tail follows. Without one it is one token
        before the end: the same prompt asked again needs a token to read.
        """
        end = prompt.tail
        return end if end is not None and end < len(prompt) else len(prompt) - 1

    def places(self, prompt: Prompt) -> list[int]:
        """Where a prefill of it may have left checkpoints, whatever was cached, or one of the turns
        before it; rising."""
        found = {stop.position for stop in self.schedule(prompt)}
        found |= {end.position for end in prompt.ends}
        found |= {b.position for b in prompt.boundaries if b.kind is BoundaryKind.PARAGRAPH}
        return sorted(found | {self.tail(prompt)})

    def end(self, prompt: Prompt, *, exact: bool) -> int:
        """The last position where a prefill of it leaves a checkpoint, if it leaves any."""
        stops = self.exact_schedule(prompt) if exact else []
        return stops[-1].position if stops else self.tail(prompt)

    def superfluous(self, checkpoints: Sequence[Stop]) -> list[Stop]:
        """Which of the checkpoints on one path (in rising order) to drop: never one of the last
        `keep_recent`.

        The distances from the deepest one back grow exponentially. What that costs is bounded:
        a prompt that parts d tokens before the deepest checkpoint T finds one at c with
        T - c <= d / (1 - thinning), or one that lies within min_span of where it parted. The end of
        the user's last message stays: the next one goes on from there, however long the tool loop
        was, where the template strips the thoughts of the loop. So do the places where the user's
        last messages begin.
        """
        if not self.thinning or len(checkpoints) <= self.keep_recent:
            return []
        tip = checkpoints[-1].position
        spared = _about_questions(checkpoints)
        num_old = len(checkpoints) - max(1, self.keep_recent)
        kept, dropped = checkpoints[num_old].position, []
        for i in range(num_old - 1, -1, -1):
            before = checkpoints[i - 1].position if i else 0
            gap = kept - before
            may_go = checkpoints[i].kind not in LASTING and checkpoints[i] not in spared
            if may_go and gap <= max(self.min_span, self.thinning * (tip - before)):
                dropped.append(checkpoints[i])
            else:
                kept = checkpoints[i].position
        return dropped[::-1]

    def _lasts_at_rest(self, stop: Stop, before: int) -> bool:
        """Whether others may start there, and would have much to read without it."""
        if stop.kind is StopKind.SYSTEM:
            return stop.position >= self.min_span
        if stop.kind in (StopKind.HEAD, StopKind.PARAGRAPH):
            return stop.position - before >= self.min_span
        return stop.kind in LASTING

    def superfluous_at_rest(self, checkpoints: Sequence[Stop], spacing: int) -> list[Stop]:
        """Which of the checkpoints on the path of a conversation that rests (in rising order) to
        drop: never the last one, nor one that other conversations start from.

        `spacing` is how many tokens are worth a checkpoint: no gap is made wider than that, or than
        min_span. Where that is no more than a prefill step the last `keep_recent` stay: the same
        prompt may be asked again. The end of the user's last message stays behind a tool loop that
        is longer than that.
        """
        if not self.thinning or not checkpoints:
            return []
        # A reply's end goes when the next turn turns out not to begin with it.
        num_kept = 2 if checkpoints[-1].kind is StopKind.REPLY else 1
        if spacing <= self.prefill_step:
            num_kept = max(num_kept, self.keep_recent)
        spacing = max(spacing, self.min_span)
        users, tip = newest_users(checkpoints), checkpoints[-1].position
        if users is not None and tip - users.position <= spacing:
            users = None
        num_old = max(0, len(checkpoints) - num_kept)
        kept, dropped = checkpoints[num_old].position, []
        for i in range(num_old - 1, -1, -1):
            stop = checkpoints[i]
            before = checkpoints[i - 1].position if i else 0
            if stop is users or self._lasts_at_rest(stop, before) or kept - before > spacing:
                kept = stop.position
            else:
                dropped.append(stop)
        return dropped[::-1]


def newest_users(checkpoints: Sequence[Stop]) -> Stop | None:
    """Of the checkpoints on one path the deepest one where the user has spoken."""
    return next((stop for stop in reversed(checkpoints) if stop.kind is StopKind.USER), None)


def _about_questions(checkpoints: Sequence[Stop]) -> set[Stop]:
    """Of the checkpoints on one path those where the user's last messages begin and end, and those
    within them."""
    users = [i for i, stop in enumerate(checkpoints) if stop.kind is StopKind.USER]
    users = users[-_NUM_QUESTIONS:]
    found = {checkpoints[i] for i in users}
    for i in users:
        begins = i - 1
        while begins > 0 and checkpoints[begins].kind is StopKind.PARAGRAPH:
            found.add(checkpoints[begins])
            begins -= 1
        found.add(checkpoints[max(0, begins)])
    return found


def _questions(prompt: Prompt) -> list[int]:
    """Where the user's last messages begin, as far as a message ends there; rising."""
    ends = prompt.ends
    places = [
        before.position
        for before, end in pairwise(ends)
        if end.kind is BoundaryKind.USER and before.position < end.position
    ]
    return places[-_NUM_QUESTIONS:]


def _tail_kind(prompt: Prompt, tail: int) -> StopKind:
    """Of the stop before the reply: who has spoken last."""
    before = [end for end in prompt.ends if end.position <= tail]
    is_users = bool(before) and before[-1].kind is BoundaryKind.USER and tail in _tails(prompt)
    return StopKind.USER if is_users else StopKind.TAIL


def _tails(prompt: Prompt) -> tuple[int | None, int | None]:
    return prompt.tail, prompt.last_message_end


class Keys:
    """What the tree compares. A prefill asks for those of one prompt again at every stop."""

    def __init__(self, make: Callable[[Prompt], bytes]) -> None:
        self._make = make
        self._last: tuple[Prompt | None, bytes] = (None, b"")

    def __call__(self, prompt: Prompt) -> bytes:
        """Mutates: they are remembered until another prompt's are asked for."""
        if self._last[0] is not prompt:
            self._last = (prompt, self._make(prompt))
        return self._last[1]
