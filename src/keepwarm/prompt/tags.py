"""The tags a model writes around its thoughts and tool calls, and a reply cut at them as it comes
in. No mlx; any thread, a Scanner one at a time."""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.reply import Called, Piece, Said, Thought, ToolCall
from keepwarm.prompt.template import Tokenizer

# state → [(tag, next state)]; behind a tag that leads to None nothing counts.
Table = dict[str, list[tuple[str, str | None]]]


@dataclass(frozen=True, slots=True)
class Markup:
    """Where the parts of one reply begin and end: content is what stands in the state "normal"."""

    table: Table
    state: str  # that the reply begins in

    @classmethod
    def of(cls, tokenizer: Tokenizer, prompt: Prompt | None) -> Markup:
        """`prompt` is what the reply continues: it may have opened a thought already."""
        start: str | None = getattr(tokenizer, "response_initial_state", None)
        is_opened = prompt is not None and opens_thought(tokenizer, prompt)
        return cls(_table(tokenizer), start or ("reasoning" if is_opened else "normal"))


class Scanner:
    """Cuts one reply at its tags; line breaks stay where they are. What was meant as a tool call
    but cannot be read stays, tags and all, what it stands in: content, or a thought."""

    is_verbatim = False  # whether templates write no line breaks of their own around the parts

    def __init__(
        self,
        tokenizer: Tokenizer,
        markup: Markup,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> None:
        self._tokenizer, self._markup, self._tools = tokenizer, markup, tools
        self._table = markup.table
        self._state: str | None = markup.state
        self.starts_in_thought = markup.state == "reasoning"
        # Where content and thoughts stood in the reply so far: (state, start, end), tags left out.
        self.spans: list[tuple[str, int, int]] = []
        self._read_len = 0  # characters of the reply, without the unread ones
        self._call_start = 0
        self._unread = ""  # may be the beginning of a tag
        self._call: list[str] = []  # the text of a call so far
        self._call_tag = ""
        self._called_from = "normal"  # the state that the call interrupts
        self._num_calls = 0
        self.closed_call = ""  # the text of the call that was closed last

    def anew(self) -> Scanner:
        """For another reply to the same prompt, with any tools."""
        return type(self)(self._tokenizer, self._markup, None)

    @property
    def can_think(self) -> bool:
        return self.starts_in_thought or self._reaches("reasoning")

    @property
    def can_call(self) -> bool:
        return self._reaches("tool")

    @property
    def decided_len(self) -> int:
        """Characters of the reply of which it is certain what they are."""
        return self._call_start if self._state == "tool" else self._read_len

    def call_text(self, start: int) -> str | None:
        """The text of the call that is being written, but for its first `start` letters; None
        where none is, and in a thought, which may only speak of calls."""
        if self._state != "tool" or self._called_from != "normal":
            return None
        return "".join(self._call)[start:]

    def push(self, text: str) -> list[Piece]:
        """What is certain now that `text` follows. Mutates."""
        self._unread += text
        pieces: list[Piece] = []
        while self._state is not None:
            found = self._find_tag()
            undecided = self._undecided_from()
            if found is None or undecided <= found[0]:
                pieces += self._passed(self._unread[:undecided])
                self._unread = self._unread[undecided:]
                self._read_len += undecided
                return pieces
            pieces += self._cross(*found)
        self._unread = ""
        return pieces

    def end(self, finish_reason: str = "stop") -> list[Piece]:
        """What is left when nothing follows. A call that was cut off by the limit ("length") is
        left out: its beginning is of use to nobody. Mutates."""
        pieces: list[Piece] = []
        while self._state is not None and (found := self._find_tag()) is not None:
            pieces += self._cross(*found)
        if self._state is not None:
            pieces += self._passed(self._unread)
        if self._state == "tool":
            closed = list(self._close_call(""))
            is_cut = finish_reason == "length"
            pieces += [piece for piece in closed if not (is_cut and isinstance(piece, Said))]
        self._unread, self._state = "", None
        return pieces

    def _find_tag(self) -> tuple[int, str, str | None] | None:
        """(place, tag, next state) of the first tag in the unread text, of two the longer."""
        found = [
            (place, -len(tag), tag, following)
            for tag, following in self._edges()
            if (place := self._unread.find(tag)) >= 0
        ]
        if not found:
            return None
        place, _, tag, following = min(found, key=lambda edge: edge[:2])
        return place, tag, following

    def _undecided_from(self) -> int:
        """Where in the unread text a tag begins whose end has not come yet."""
        unread = self._unread
        tags = [tag for tag, _ in self._edges()]
        longest = max(map(len, tags), default=1)
        for place in range(max(0, len(unread) - longest + 1), len(unread)):
            rest = unread[place:]
            if any(len(rest) < len(tag) and tag.startswith(rest) for tag in tags):
                return place
        return len(unread)

    def _cross(self, place: int, tag: str, following: str | None) -> Iterator[Piece]:
        """Goes behind `tag` into the next state."""
        yield from self._passed(self._unread[:place])
        self._unread = self._unread[place + len(tag) :]
        self._read_len += place + len(tag)
        if self._state == "tool":
            is_own_end = (tag, following) in self._table["tool"]
            is_called = yield from self._close_call(tag if is_own_end else "")
            if is_own_end and not is_called and self._called_from == "reasoning":
                following = "reasoning"  # the thought only spoke of calls
        elif following == "tool":
            self._call_tag, self._called_from = tag, self._state or "normal"
            self._call_start = self._read_len - len(tag)
        elif following == "reasoning":
            yield Thought("")
        self._state = following

    def _passed(self, text: str) -> Iterator[Piece]:
        """Text without tags; a model's own states may hold text that is nobody's."""
        if self._state == "tool":
            self._call.append(text)
        elif text and self._state in ("normal", "reasoning"):
            self.spans.append((self._state, self._read_len, self._read_len + len(text)))
            yield Said(text) if self._state == "normal" else Thought(text)

    def _close_call(self, end_tag: str) -> Generator[Piece, None, bool]:
        """Returns whether it was a call."""
        text, tag = "".join(self._call), self._call_tag
        self.closed_call = text
        self._call, self._call_tag = [], ""
        kind = Thought if self._called_from == "reasoning" else Said
        calls = _read_calls(self._tokenizer, text, self._tools)
        if not calls:
            # The tag may have been spoken of before it was meant.
            passed, _, last = text.rpartition(tag)
            calls = _read_calls(self._tokenizer, last, self._tools) if passed else []
            unread = tag + (passed if calls else text + end_tag)
            self.spans.append(
                (
                    "normal" if kind is Said else "reasoning",
                    self._call_start,
                    self._call_start + len(unread),
                )
            )
            yield kind(unread)
        for call in calls:
            yield Called(self._num_calls, call)
            self._num_calls += 1
        return bool(calls)

    def _edges(self) -> list[tuple[str, str | None]]:
        edges = self._table.get(self._state or "", [])
        if self._state == "tool" and self._called_from == "reasoning":
            # A thought may speak of calls, and end.
            return [*edges, *(e for e in self._table["reasoning"] if e[1] != "tool")]
        return edges

    def _reaches(self, state: str) -> bool:
        return any(state == following for edges in self._table.values() for _, following in edges)


def opens_thought(tokenizer: Tokenizer, prompt: Prompt) -> bool:
    """Whether the generation prompt of `prompt` leaves a thought open."""
    start_tokens = getattr(tokenizer, "think_start_tokens", None)
    end_tokens = getattr(tokenizer, "think_end_tokens", None)
    if not start_tokens or not end_tokens:
        return False
    # Users write tags too; the generation prompt begins behind the last message.
    tail = prompt.tokens[prompt.last_message_end or 0 :].tolist()
    return _last_index(tail, start_tokens) > _last_index(tail, end_tokens)


def _last_index(tokens: Sequence[int], wanted: Sequence[int]) -> int:
    """How many tokens lie before the last occurrence of `wanted`, plus one; 0 without one."""
    width = len(wanted)
    places = range(len(tokens) - width + 1, 0, -1)
    return next((i for i in places if list(tokens[i - 1 : i - 1 + width]) == list(wanted)), 0)


def _table(tokenizer: Tokenizer) -> Table:
    """The same table mlx-lm's server streams by."""
    facts: Any = tokenizer
    table: Table = {"normal": [], "reasoning": [], "tool": []}
    given: Mapping[str, Any] = getattr(facts, "response_transitions", {})
    if getattr(facts, "has_thinking", False):
        table["normal"].append((facts.think_start, "reasoning"))
        table["reasoning"].append((facts.think_end, "normal"))
    if getattr(facts, "has_tool_calling", False):
        # A response format of the model's own decides where calls start.
        if not any(state == "tool" for edges in given.values() for _, state in edges):
            table["normal"].append((facts.tool_call_start, "tool"))
        table["reasoning"].append((facts.tool_call_start, "tool"))
        if facts.tool_call_end:
            table["tool"].append((facts.tool_call_end, "normal"))
    for tag in getattr(facts, "structural_markers", ()):
        table["normal"].append((tag, "normal"))
    for state, edges in given.items():
        table.setdefault(state, []).extend(edges)
    return table


def _read_calls(
    tokenizer: Tokenizer, piece: str, tools: Sequence[Mapping[str, Any]] | None
) -> list[ToolCall]:
    parser: Any = getattr(tokenizer, "tool_parser", None)
    try:
        parsed = parser(piece, tools)
        return [_read_call(call) for call in (parsed if isinstance(parsed, list) else [parsed])]
    except Exception:
        # A model may write anything, and each parser fails in its own way.
        return []


def _read_call(call: Mapping[str, Any]) -> ToolCall:
    name, arguments = call["name"], call.get("arguments", {})
    if not isinstance(name, str):
        raise TypeError(f"a tool's name must be text, got {name!r}")
    if not isinstance(arguments, str):
        arguments = json_text(arguments)
    return ToolCall(str(call.get("id") or new_call_id()), name, arguments)


def json_text(value: Any) -> str:
    """Half a character, which a model can write as an escape, has no bytes: it is replaced."""
    text = json.dumps(value, ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def new_call_id() -> str:
    """Nine letters and digits: the one form that all templates accept."""
    return uuid.uuid4().hex[:9]
