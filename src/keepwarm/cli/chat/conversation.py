"""A conversation with the engine: its messages, and each turn as it is answered. One thread at a
time; the engine's thread only puts events into a turn's queue."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keepwarm.engine.engine import Engine
from keepwarm.engine.request import Request, Sampling
from keepwarm.engine.thought import thought_limit
from keepwarm.errors import BadInput
from keepwarm.events import Delta, Done, Event, Failed, Reading, Result
from keepwarm.prompt.follow_up import follow_up
from keepwarm.prompt.hygiene import clean
from keepwarm.prompt.messages import Message
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.reply import Piece, Reply
from keepwarm.prompt.split import Splitter
from keepwarm.server.service import WithoutCalls


@dataclass(slots=True)
class Totals:
    """Of all turns, in all conversations."""

    num_turns: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reply_tokens: int = 0

    def add(self, result: Result) -> None:
        """Mutates."""
        self.num_turns += 1
        self.prompt_tokens += result.prompt_tokens
        self.cached_tokens += result.cached_tokens
        self.reply_tokens += len(result.tokens)


@dataclass
class Conversation:
    """`messages` grow by a question and its answer with every turn that ends."""

    engine: Engine
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    system: str | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    hygiene_off: tuple[str, ...] = ()
    thinking_budget: int | None = None
    messages: list[Message] = field(default_factory=list)  # without the system prompt
    totals: Totals = field(default_factory=Totals)

    def __post_init__(self) -> None:
        self._reader = WithoutCalls(self.engine.tokenizer)

    def ask(self, text: str) -> Turn:
        """Raises RenderError where the template refuses, and what the engine raises."""
        return Turn(self, [*self.messages, {"role": "user", "content": text}])

    def retry(self, question: str | None = None) -> Turn:
        """The last question again, or another in its place. Raises BadInput when there is none."""
        before, last = self._parted()
        return Turn(self, [*before, {"role": "user", "content": question or last}])

    def undo(self) -> str:
        """Takes the last question back, with its answer; returns it. Raises BadInput."""
        self.messages, last = self._parted()
        return last

    def begin_anew(self) -> None:
        self.messages = []

    def set_thinking(self, wanted: str) -> bool:
        """`on` or `off`. Returns whether that makes a difference to the template. Raises
        BadInput."""
        if wanted not in ("on", "off"):
            raise BadInput("/think needs on or off")
        asked: list[Message] = [{"role": "user", "content": "Hello"}]
        ways = [self.template_kwargs | {"enable_thinking": is_on} for is_on in (True, False)]
        one, other = (render_chat(self._reader, asked, template_kwargs=way) for way in ways)
        self.template_kwargs = ways[0] if wanted == "on" else ways[1]
        return not np.array_equal(one.tokens, other.tokens)

    def with_system(self, messages: list[Message]) -> list[Message]:
        return [{"role": "system", "content": self.system}, *messages] if self.system else messages

    def as_rendered(self, messages: list[Message]) -> list[Message]:
        """With the system prompt, in a form that the template writes."""
        return clean(
            self.engine.tokenizer,
            self.with_system(messages),
            template_kwargs=self.template_kwargs,
            without=self.hygiene_off,
        ).messages

    def _parted(self) -> tuple[list[Message], str]:
        """What comes before the last question, and the question."""
        asked = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not asked:
            raise BadInput("nothing has been asked yet")
        return self.messages[: asked[-1]], str(self.messages[asked[-1]]["content"])


class Turn:
    """One question on its way. Iterate `events` to its end; `stop` ends it early."""

    def __init__(self, conversation: Conversation, messages: list[Message]) -> None:
        self._conversation = conversation
        self._messages = messages
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._pieces: list[Piece] = []
        self.result: Result | None = None
        engine, kwargs = conversation.engine, conversation.template_kwargs
        prompt = render_chat(
            engine.tokenizer, conversation.as_rendered(messages), template_kwargs=kwargs
        )
        self._splitter = Splitter(conversation._reader, prompt=prompt, template_kwargs=kwargs)
        budget, thought = conversation.thinking_budget, None
        if budget is not None:
            thought = thought_limit(engine.tokenizer, prompt, budget, template_kwargs=kwargs)
        request = Request(prompt, conversation.max_tokens, conversation.sampling, thought=thought)
        self._ticket = engine.submit(request, self._events.put)

    @property
    def reply(self) -> Reply:
        """What has been said so far."""
        return Reply.of(self._pieces)

    def stop(self) -> None:
        """What was said until now is the answer. Never waits; any thread, or a signal handler."""
        self._ticket.cancel()

    def events(self) -> Iterator[Reading | Piece]:
        """How far the prompt is read, if it has to be, and the reply piece by piece. Raises what
        failed."""
        while self.result is None:
            event = self._events.get()
            if isinstance(event, Reading):
                yield event
            elif isinstance(event, Delta):
                yield from self._taken(self._splitter.push(event.text))
            elif isinstance(event, Failed):
                raise event.error or RuntimeError("the reply failed without an error")
            elif isinstance(event, Done) and event.result is not None:
                yield from self._taken(self._splitter.end())
                self._end(event.result)

    def _taken(self, pieces: list[Piece]) -> list[Piece]:
        self._pieces += pieces
        return pieces

    def _end(self, result: Result) -> None:
        """The conversation goes on from here, and the engine reads ahead. An answer that was
        stopped before it said anything is none: the conversation is what it was."""
        self.result = result
        conversation, reply = self._conversation, self.reply
        conversation.totals.add(result)
        if not reply.content and result.finish_reason == "cancelled":
            return
        said = reply.as_message()
        conversation.messages = [*self._messages, said]
        upcoming = follow_up(
            conversation.engine.tokenizer,
            conversation.as_rendered(self._messages),
            said,
            template_kwargs=conversation.template_kwargs,
        )
        if upcoming is not None:
            self._ticket.follow_up(upcoming)
