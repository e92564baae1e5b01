"""Finds where messages end in a rendered conversation: marks are put into the messages, the
conversation is rendered again, and taking the marks out must give the first rendering back.
Plain data, no mlx; any thread."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.prompt.messages import Message
from keepwarm.prompt.template import Template

# Digits pass through trimming, JSON and changes of case. The first digit does not come again, so
# a mark cannot overlap itself, whatever stands around it.
_MARK_DIGITS = "7{:04d}0316425"
_INDEX_WIDTH = 6

# More messages than this that change a rendering when marked: the template reads its messages too
# closely, and looking for each of them costs a rendering or more.
_MAX_UNMARKABLE = 8


@dataclass(frozen=True, slots=True)
class Found:
    """A message's mark: `char` is where it stood in the rendering, `spot` where in the message."""

    char: int
    spot: str


def spots(message: Message) -> Iterator[str]:
    """Where in `message` a mark may go, the best first. A mark nearest to the message's end needs
    the least knowledge of what the template writes behind it."""
    calls = message.get("tool_calls", [])
    if calls and _last_string(calls[-1]["function"]["arguments"]) is not None:
        yield "arguments"
    if calls:
        yield "name"
    if len(calls) > 1:
        yield "first_name"  # some models make one call at a time, and their templates write one
    if message["content"]:
        yield "content"
        if _middle(message["content"]) is not None:
            yield "middle"
    if message.get("reasoning_content"):
        yield "reasoning"
    if message["content"] == "":
        yield "content"


def marked(message: Message, spot: str, mark: str) -> Message:
    """A copy of `message` with `mark` in it."""
    if spot == "content":
        return {**message, "content": _after_last_letter(message["content"], mark)}
    if spot == "middle":
        cut = _middle(message["content"]) or 0
        content = message["content"]
        return {**message, "content": content[:cut] + mark + content[cut:]}
    if spot == "reasoning":
        texts = {name: message[name] for name in _REASONING if name in message}
        return {**message, **{name: _after_last_letter(t, mark) for name, t in texts.items()}}
    return {**message, "tool_calls": _marked_calls(message["tool_calls"], spot, mark)}


def space_behind(message: Message, spot: str) -> str:
    """The white space of the message's own text that follows the mark."""
    text: str | None = ""
    if spot == "content":
        text = message["content"]
    elif spot == "reasoning":
        text = message["reasoning_content"]
    elif spot == "arguments":
        text = _last_string(message["tool_calls"][-1]["function"]["arguments"])
    return text[len(text.rstrip()) :] if text else ""


def unused_mark(text: str) -> str:
    """A mark, without its index, that does not occur in `text`."""
    return next(
        mark
        for mark in (_MARK_DIGITS.format(n) for n in range(10_000))
        if mark not in text and mark.count(mark[0]) == 1
    )


class Locator:
    """Locates the messages of one conversation in its rendering `text`."""

    def __init__(
        self,
        template: Template,
        messages: Sequence[Message],
        text: str,
        *,
        add_generation_prompt: bool,
    ) -> None:
        self._template = template
        self._messages = messages
        self._text = text
        self._prompted = add_generation_prompt
        self._mark = unused_mark(text)
        self._num_unmarkable = 0
        self.is_reproducible = True  # the same messages still render to the same text

    def locate(self) -> dict[int, Found]:
        """Where each message was found, by its index; a message without proof is left out."""
        found: dict[int, Found] = {}
        waiting = {i: spots(message) for i, message in enumerate(self._messages)}
        while waiting and self.is_reproducible:
            batch = {}
            for i, left in list(waiting.items()):
                spot = next(left, None)
                if spot is None:
                    del waiting[i]
                else:
                    batch[i] = spot
            for i, char in self._prove(batch).items():
                found[i] = Found(char, batch[i])
                del waiting[i]
        return found

    def _prove(self, batch: Mapping[int, str]) -> dict[int, int]:
        """The places of the marks of `batch` that change nothing else."""
        if not batch:
            return {}
        proven = self._places(batch)
        if proven is not None:
            return proven
        if not self._check_reproducible():
            return {}
        self._num_unmarkable = 0
        return self._prove_halves(batch)

    def _prove_halves(self, batch: Mapping[int, str]) -> dict[int, int]:
        """As `_prove`, for a batch that failed as a whole. Goes from the first message to the
        last, so that what is given up does not depend on how the conversation goes on."""
        if len(batch) == 1:
            self._num_unmarkable += 1
            return {}
        indices = sorted(batch)
        middle = len(indices) // 2
        proven: dict[int, int] = {}
        for half in (indices[:middle], indices[middle:]):
            if self._num_unmarkable > _MAX_UNMARKABLE:
                break
            part = {i: batch[i] for i in half}
            places = self._places(part)
            proven.update(self._prove_halves(part) if places is None else places)
        return proven

    def _places(self, batch: Mapping[int, str]) -> dict[int, int] | None:
        """The places of all marks of `batch` in one rendering; None where the marks changed it."""
        places = self._places_of([[i] for i in batch], batch)
        if places is not None:
            return places
        # There are templates that ask whether a message equals the last one: equal messages must
        # stay equal, so they get the same mark.
        equal: dict[object, list[int]] = {}
        for i, spot in batch.items():
            message = self._messages[i]
            own = i if "tool_calls" in message else None
            equal.setdefault((spot, message["role"], message["content"], own), []).append(i)
        return self._places_of(list(equal.values()), batch) if len(equal) < len(batch) else None

    def _places_of(
        self, owners: Sequence[Sequence[int]], batch: Mapping[int, str]
    ) -> dict[int, int] | None:
        """As `_places`, with one mark for each list of messages."""
        messages = list(self._messages)
        for index, members in enumerate(owners):
            mark = f"{self._mark}{index:0{_INDEX_WIDTH}d}"
            for i in members:
                messages[i] = marked(messages[i], batch[i], mark)
        rendered = self._template.try_text(messages, add_generation_prompt=self._prompted)
        texts, indices = self._taken_apart(rendered or "")
        ends = list(itertools.accumulate(map(len, texts)))
        if ends[-1] != len(self._text) or not all(
            self._text.startswith(text, end - len(text)) for text, end in zip(texts, ends)
        ):
            return None
        seen: dict[int, list[int]] = {}
        for char, index in zip(ends, indices):
            seen.setdefault(index, []).append(char)
        return dict(_assigned(owners, seen))

    def _taken_apart(self, rendered: str) -> tuple[list[str], list[int]]:
        """The text before, between and behind the marks, and whose they are. A mark that a template
        cut short stays text."""
        first, *others = rendered.split(self._mark)
        texts, indices = [first], []
        for other in others:
            number, text = other[:_INDEX_WIDTH], other[_INDEX_WIDTH:]
            if len(number) == _INDEX_WIDTH and number.isdecimal():
                indices.append(int(number))
                texts.append(text)
            else:
                texts[-1] += self._mark + other
        return texts, indices

    def _check_reproducible(self) -> bool:
        again = self._template.try_text(self._messages, add_generation_prompt=self._prompted)
        self.is_reproducible = again == self._text
        return self.is_reproducible


# The names templates know a thought by; it is the same text under each.
_REASONING = ("reasoning_content", "reasoning", "thinking")


def _assigned(
    owners: Sequence[Sequence[int]], seen: Mapping[int, Sequence[int]]
) -> Iterator[tuple[int, int]]:
    """Pairs each message with the first place its mark was written to."""
    for index, members in enumerate(owners):
        chars = seen.get(index, ())
        times, rest = divmod(len(chars), len(members))
        if times and not rest:  # a template may write a message more than once
            yield from zip(members, chars[::times])


def _after_last_letter(text: str, mark: str) -> str:
    """Templates trim text, so the mark goes before the white space at the end."""
    end = len(text.rstrip())
    return text[:end] + mark + text[end:]


def _middle(text: str) -> int | None:
    """A place inside the word nearest to the middle: text that begins or ends with something the
    template asks for still does."""
    places = [m.start() + 1 for m in re.finditer(r"[^\W\d_](?=[^\W\d_])", text)]
    return min(places, key=lambda place: abs(place - len(text) // 2)) if places else None


def _marked_calls(calls: Sequence[Any], spot: str, mark: str) -> list[Any]:
    index = 0 if spot == "first_name" else len(calls) - 1
    function = dict(calls[index]["function"])
    if spot == "arguments":
        function["arguments"] = _marked_last_string(function["arguments"], mark)
    else:
        function["name"] += mark
    return [*calls[:index], {**calls[index], "function": function}, *calls[index + 1 :]]


def _last_string(value: object) -> str | None:
    """The string that comes last in a value of JSON's kinds."""
    if isinstance(value, str):
        return value
    inner = list(value.values()) if isinstance(value, Mapping) else value
    if isinstance(inner, list | tuple):
        found = (_last_string(item) for item in reversed(inner))
        return next((text for text in found if text is not None), None)
    return None


def _marked_last_string(value: Any, mark: str) -> Any:
    if isinstance(value, str):
        return _after_last_letter(value, mark)
    keys = list(value) if isinstance(value, Mapping) else range(len(value))
    changed = dict(value) if isinstance(value, Mapping) else list(value)
    key = next(key for key in reversed(keys) if _last_string(value[key]) is not None)
    changed[key] = _marked_last_string(value[key], mark)
    return changed


def spaces_as_written(space: str) -> tuple[str, ...]:
    """The usual ways to write white space at the end of a text: as it is, inside JSON, trimmed."""
    return tuple(dict.fromkeys((space, json.dumps(space)[1:-1], "")))
