"""Where a prompt parts from the nearest one that was read, what that cost, and why, as far as it can
be proven. Plain data; any thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

from keepwarm.explain.recent import Asked, Recent, Seen, num_seen

# Fewer tokens that are read again are no news: ends of messages, a generation prompt.
_MIN_TOKENS = 32
_AROUND = 8  # tokens on each side of the place
_MAX_CHARS = 24
_LONG = 64  # tokens that are compared for equal text

Decode = Callable[[Sequence[int]], str]

_GONE = "no longer in the cache"
_ROOM = "give the cache more memory (--cache-bytes), or let fewer conversations run at once"
# Why the cache had less than the prompts share, in the engine's words.
_LOST = {
    "evicted": "evicted to make room",
    "not_stored": "not stored: what would have had to go was worth more",
    "no_checkpoint": "no checkpoint before this place",
    "disabled": "the caches of this model cannot be stored",
    "fault": "a stored state was not what its place says",
}
_DIFFERS = "the text differs here"
_IN_FRONT = ("the system prompt", "the system part", "the tools")
_ADVICE = {
    "evicted to make room": _ROOM,
    _GONE: _ROOM,
    "thinking was not sent back": "let the client send reasoning_content (thinking) back",
    "the same tools in another order": "let the client send tools in a fixed order",
    "other arguments of the template": "let the client keep reasoning_effort and the like constant",
    "a billing header": "take billing_header out of --hygiene-off: that rule leaves the line out",
    "white space alone": "let the client send texts back as they came",
}


@dataclass(frozen=True, slots=True)
class Read:
    """What the engine said of a prompt."""

    cached_len: int
    reason: str
    prefill_s: float


@dataclass(frozen=True, slots=True)
class Miss:
    """Tokens that were read though they had been read before."""

    again: int
    again_s: float
    parted_at: int
    place: str
    cause: str
    ago_s: float
    before: str = ""  # the text at the place, what stood there, and what stands there now
    was: str = ""
    now: str = ""

    @property
    def advice(self) -> str | None:
        if self.cause == _DIFFERS and self.place in _IN_FRONT:
            return "let the client put what changes (a time, an id) behind what stays"
        return _ADVICE.get(self.cause)

    @property
    def words(self) -> str:
        """One line."""
        text = ""
        if self.was or self.now:
            # As Python writes texts: what was sent must not steer a terminal.
            text = f": {self.before + '|' + self.was!r} → {self.before + '|' + self.now!r}"
        return (
            f"parts from the request of {_ago(self.ago_s)} ago at token {self.parted_at:,}, in"
            f" {self.place}{text}; {self.again:,} tokens read again, {self.again_s:.1f} s"
            f" ({self.cause})"
        )

    def without_text(self) -> Miss:
        return replace(self, before="", was="", now="")

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "read_again_tokens": self.again,
            "read_again_s": round(self.again_s, 3),
            "parted_at": self.parted_at,
            "place": self.place,
            "cause": self.cause,
            "advice": self.advice,
            "ago_s": round(self.ago_s, 1),
        }
        if self.was or self.now:
            found |= {"before": self.before, "was": self.was, "now": self.now}
        return found


def find_miss(recent: Recent, caller: str, asked: Asked, read: Read, decode: Decode) -> Miss | None:
    """None where nothing worth a word was read again. Changes nothing."""
    if len(asked.prompt) - read.cached_len < _MIN_TOKENS:
        return None
    miss = compare(recent, caller, asked, read, decode)
    return miss if miss is not None and miss.again >= _MIN_TOKENS else None


def compare(recent: Recent, caller: str, asked: Asked, read: Read, decode: Decode) -> Miss | None:
    """The prompt beside the nearest one of this caller; None where there is none. Changes
    nothing."""
    tokens = asked.prompt.tokens
    found = recent.nearest(caller, tokens)
    if found is None:
        return None
    seen, shared = found
    # Text that is new may repeat what stands further up: that was not read again.
    again = num_seen(tokens[read.cached_len :], seen.tokens[read.cached_len :])
    at = min(shared, len(tokens) - 1)
    miss = Miss(
        again=again,
        again_s=read.prefill_s * again / max(1, len(tokens) - read.cached_len),
        parted_at=shared,
        place=_place(asked, seen, at, decode),
        cause=_LOST.get(read.reason, _GONE),
        ago_s=monotonic() - seen.at,
    )
    if again and shared - read.cached_len >= again / 2:  # most of it lies before the place
        return miss
    if shared == len(tokens) or (shared >= seen.prompt_len and not again):
        return replace(miss, cause="nothing: it goes on from there")
    before, was, now = _texts(asked, seen, shared, decode)
    cause = _cause(asked, seen, shared, miss.place, decode)
    return replace(miss, cause=cause, before=before, was=was, now=now)


def _place(asked: Asked, seen: Seen, at: int, decode: Decode) -> str:
    if at >= seen.prompt_len:
        return "the reply to it"
    place = asked.place(at)
    if place != "the system part":
        return place
    content, end = _system_text(asked), asked.system_end or at
    start = decode(asked.prompt.tokens[:end].tolist()).find(content) if content else -1
    chars = len(decode(asked.prompt.tokens[:at].tolist()))
    if start >= 0 and start <= chars < start + len(content):
        return "the system prompt"
    return "the tools" if asked.tools else "the system part"


def _system_text(asked: Asked) -> str:
    content = asked.messages[0].get("content") if asked.messages else None
    return content.strip() if isinstance(content, str) else ""


def _cause(asked: Asked, seen: Seen, shared: int, place: str, decode: Decode) -> str:
    """What can be proven, else that the text differs."""
    if asked.template != seen.template:
        return "other arguments of the template"
    if shared >= seen.prompt_len:
        return _cause_in_reply(asked, seen)
    if asked.tools != seen.tools and place in ("the tools", "the system part"):
        return _cause_in_tools(asked.tools, seen.tools)
    was = decode(seen.tokens[shared : shared + _LONG].tolist())
    now = decode(asked.prompt.tokens[shared : shared + _LONG].tolist())
    if _begin_alike(was, now):
        return "equal text in other tokens"
    if _begin_alike("".join(was.split()), "".join(now.split())):
        return "white space alone"
    line = decode(asked.prompt.tokens[max(0, shared - _LONG) : shared].tolist()).rpartition("\n")[2]
    if "x-anthropic-billing-header" in line:
        return "a billing header"
    return _DIFFERS


def _cause_in_reply(asked: Asked, seen: Seen) -> str:
    if not seen.has_thought:
        return "the reply came back in another form"
    index = seen.num_messages
    reply = asked.messages[index] if index < len(asked.messages) else {}
    if reply.get("reasoning_content") or reply.get("reasoning"):
        return "the template takes past thoughts out"
    return "thinking was not sent back"


def _cause_in_tools(tools: Sequence[tuple[str, bytes]], before: Sequence[tuple[str, bytes]]) -> str:
    if sorted(tools) == sorted(before):
        return "the same tools in another order"
    now, was = dict(tools), dict(before)
    changed = [name for name in now if name in was and now[name] != was[name]]
    added, gone = [n for n in now if n not in was], [n for n in was if n not in now]
    for names, words in ((changed, "changed"), (added, "is new"), (gone, "is gone")):
        if names:
            return f"the tool {names[0]} {words}"
    return "the tools differ"


def _begin_alike(one: str, other: str) -> bool:
    length = min(len(one), len(other))
    return length >= _LONG // 2 and one[: length - 4] == other[: length - 4]


def _texts(asked: Asked, seen: Seen, shared: int, decode: Decode) -> tuple[str, str, str]:
    before = decode(asked.prompt.tokens[max(0, shared - _AROUND) : shared].tolist())
    sides = (seen.tokens, asked.prompt.tokens)
    was, now = (decode(side[shared : shared + _AROUND].tolist())[:_MAX_CHARS] for side in sides)
    while len(was) > 1 and len(now) > 1 and was[-1] == now[-1]:  # they go on alike
        was, now = was[:-1], now[:-1]
    return before[-_MAX_CHARS // 2 :], was, now


def _ago(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
