"""Messages to tokens with boundaries, for any chat template. Whether a shorter rendering is a
prefix of a longer one is never assumed: a boundary is proven in this very rendering or dropped.
No mlx; any thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from keepwarm.errors import Abandoned
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt
from keepwarm.prompt.bounds import UNBOUND, Bounds
from keepwarm.prompt.encode import Encoded, encode, vocabulary_len
from keepwarm.prompt.endings import (
    Case,
    Ending,
    actual_case,
    find_call_form,
    find_ending,
    find_user_header,
    usual_case,
)
from keepwarm.prompt.markup import thinking_starts
from keepwarm.prompt.memory import memory_of
from keepwarm.prompt.messages import (
    CallForm,
    Message,
    in_form,
    is_users,
    num_leading_system,
    read_messages,
    read_template_kwargs,
    read_tools,
    system_breaks,
)
from keepwarm.prompt.plain import last_paragraph
from keepwarm.prompt.preamble import Part, SystemParts, find_system_parts, sample_system
from keepwarm.prompt.sentinel import Found, Locator, space_behind, spaces_as_written, spots
from keepwarm.prompt.template import Template, Tokenizer, digest, encodes_plainly

log = logging.getLogger("keepwarm.prompt")

# A template that writes the time may render anew while we look; after this many it always does.
_MAX_TRIES = 3


def render_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    template_kwargs: Mapping[str, Any] | None = None,
    namespace: str = "",
    is_made_up: bool = False,
    bounds: Bounds = UNBOUND,
) -> Prompt:
    """The tokens `tokenizer.apply_chat_template` gives for `messages`, with their boundaries.

    A boundary depends on what lies before it only: a longer conversation that begins with the same
    tokens has the same ones in them, but for GENERATION, PARAGRAPH and the ends of blocks, which a
    system message in one piece does not have. Those of one `namespace` share what was encoded
    before. One that `is_made_up` will not be asked for. Changes no argument. Raises RenderError
    where the template refuses, BadInput where `messages` are no conversation, TooLong and Abandoned
    where `bounds` say so.
    """
    template = Template(tokenizer, read_tools(tools), read_template_kwargs(template_kwargs), bounds)
    rendering = _Rendering(
        template, read_messages(messages), add_generation_prompt, namespace, system_breaks(messages)
    )
    return rendering.fresh() if is_made_up else rendering.prompt()


class _Rendering:
    """One conversation being rendered."""

    def __init__(
        self,
        template: Template,
        messages: list[Message],
        prompted: bool,
        namespace: str,
        breaks: list[tuple[int, int]],
    ) -> None:
        self._template = template
        # One tool shows where tools go; all of them would be written for every question.
        self._short = replace(template, tools=template.tools[:1] if template.tools else None)
        self._memory = memory_of(template.tokenizer)
        self._key = (template.key(), template.tools is not None)
        self._form = self._call_form(messages)
        self._messages = in_form(messages, self._form)
        self._prompted = prompted
        self._namespace = namespace
        self._breaks = breaks

    def prompt(self) -> Prompt:
        template, latest = self._template, self._memory.latest
        size = vocabulary_len(template.tokenizer)
        made_from = (
            self._namespace, self._key, size, self._messages, self._prompted, self._breaks
        )  # fmt: skip
        text = self._text()
        template.bounds.check_len(template.tokenizer, text)
        made = latest.get(text, made_from)
        if made is None:
            text, found = self._located(text)
            made = self._prompt(text, found)
            if made.boundaries and encodes_plainly(template.tokenizer):
                latest.put(text, made_from, made)
        return made

    def fresh(self) -> Prompt:
        """As `prompt`, outside the memory of the last ones."""
        return self._prompt(*self._located(self._text()))

    def _prompt(self, text: str, found: Mapping[int, Found]) -> Prompt:
        tokenizer = self._template.tokenizer
        self._template.bounds.check_wanted()
        encoded = encode(tokenizer, text, self._namespace)
        if not encodes_plainly(tokenizer):
            ids = self._template.tokens(self._messages, add_generation_prompt=self._prompted)
            if not np.array_equal(ids, encoded.ids):
                return Prompt(ids)
        try:
            boundaries = self._boundaries(text, found, encoded)
        except Abandoned:
            raise
        except Exception:
            # Boundaries only say where to stop: a fault in finding them is no user's fault.
            log.exception("a conversation is served without boundaries")
            boundaries = []
        return Prompt(encoded.ids, boundaries)

    def _text(self) -> str:
        return self._template.text(self._messages, add_generation_prompt=self._prompted)

    def _located(self, text: str) -> tuple[str, dict[int, Found]]:
        """The rendering and where its messages were found in it."""
        for _ in range(_MAX_TRIES):
            locator = Locator(
                self._template, self._messages, text, add_generation_prompt=self._prompted
            )
            found = locator.locate()
            if locator.is_reproducible:
                return text, found
            text = self._text()
        return text, {}

    def _boundaries(
        self, text: str, found: Mapping[int, Found], encoded: Encoded
    ) -> list[Boundary]:
        kinds: dict[int, BoundaryKind] = {}
        last_char = 0
        chars = list(self._chars(text, found))
        for char, kind in chars:
            position = encoded.position(char)
            if position:
                kinds.setdefault(position, kind)
                last_char = max(last_char, char)
        if self._prompted and (char := self._paragraph(text, found, [at for at, _ in chars])):
            position = encoded.position(char)
            if position:
                kinds.setdefault(position, BoundaryKind.PARAGRAPH)
        if self._prompted:
            head_end = self._prompt_head_end(text, last_char)
            edges = (encoded.position(char) for char in range(head_end, last_char, -1))
            position = next((edge for edge in edges if edge), None)
            if position is not None:
                kinds.setdefault(position, BoundaryKind.GENERATION)
        return [Boundary(position, kind) for position, kind in kinds.items()]

    def _chars(self, text: str, found: Mapping[int, Found]) -> Iterator[tuple[int, BoundaryKind]]:
        """Where in `text` something ends; where two things end together, the first counts."""
        parts = self._system_parts(text)
        for part in parts:
            yield part.num_chars, part.kind
        last_leading = num_leading_system(self._messages) - 1
        for i, place in sorted(found.items()):
            if i == last_leading and parts:
                continue  # the system part ends with it
            kind = BoundaryKind.USER if is_users(self._messages[i]) else BoundaryKind.MESSAGE
            self._template.bounds.check_wanted()
            for char in self._message_ends(text, i, place):
                yield char, kind

    def _paragraph(self, text: str, found: Mapping[int, Found], ends: Sequence[int]) -> int:
        """Where the last paragraph of what the user said last begins, behind a long text; or 0.
        `ends` are those of all that was found."""
        last = len(self._messages) - 1
        place = found.get(last)
        if place is None or self._messages[last]["role"] != "user":
            return 0
        before = [*ends, *(found[i].char for i in found if i != last)]
        start = max((char for char in before if char < place.char), default=0)
        return last_paragraph(text, start, place.char)

    def _message_ends(self, text: str, i: int, place: Found) -> list[int]:
        spaces = spaces_as_written(space_behind(self._messages[i], place.spot))
        for ending in self._endings(i, place.spot):
            for space in spaces:
                written = (space + closing for closing in ending.closings)
                ends = [place.char + len(w) for w in written if text.startswith(w, place.char)]
                if ends:
                    return ends
        return []

    def _endings(self, i: int, spot: str) -> Iterator[Ending]:
        """What may follow message `i`: first as for any message of its kind, then as for itself."""
        usual = usual_case(self._messages[i], spot, self._form)
        if usual is not None and (ending := self._ending(usual, "")) is not None:
            yield ending
        actual = actual_case(self._messages, i, spot, self._form)
        if (ending := self._ending(actual, self._namespace)) is not None:
            yield ending

    def _ending(self, case: Case, namespace: str) -> Ending | None:
        """What was learned from made-up messages is a template's, and everybody's; the rest, how
        long it takes included, is the business of those who sent the messages."""
        key = ("ending", namespace, self._key, digest(case.text()))
        return self._memory.recall(key, lambda: find_ending(self._short, case, self._user_header()))

    def _user_header(self) -> str:
        """What a user message begins with, seen behind an assistant's message."""
        return self._memory.recall(("header", self._key), lambda: find_user_header(self._short))

    def _system_parts(self, text: str) -> list[Part]:
        """The parts made of tools and system messages that `text` begins with."""
        leading = self._messages[: num_leading_system(self._messages)]

        def learn() -> SystemParts:
            return find_system_parts(self._template, leading, self._user_header(), self._breaks)

        made_from = (leading, self._template.tools, self._breaks)
        key = ("system", self._namespace, self._key, digest(repr(made_from)))
        known = self._memory.recall(key, learn)
        begun = known.begun_by(text)
        if any(part.kind is BoundaryKind.SYSTEM for part in begun):
            return begun
        if sample_system(self._template, leading) == known.sample:
            return begun
        # The template writes another date by now.
        return self._memory.learn_anew(key, learn).begun_by(text)

    def _prompt_head_end(self, text: str, last_char: int) -> int:
        """Where the generation prompt ends, without its thinking tail."""
        last = len(self._messages) - 1
        is_calling = "tool_calls" in self._messages[last]
        spot = next(spots(self._messages[last])) if is_calling else "content"
        for ending in self._endings(last, spot):
            if ending.prompt and text.endswith(ending.prompt):
                return len(text) - len(ending.prompt) + ending.prompt_head_len
        # Something further up decides on the thinking; its tags can still be seen.
        return last_char + thinking_starts(text[last_char:]) if last_char else len(text)

    def _call_form(self, messages: Sequence[Message]) -> CallForm:
        if not any("tool_calls" in message for message in messages):
            return CallForm()
        key = ("form", self._key)
        return self._memory.recall(key, lambda: find_call_form(self._short))
