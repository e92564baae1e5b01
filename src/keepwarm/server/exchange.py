"""A request that was submitted, and its replies in the one form that all protocols write from: a
stream of `Heard`, or a list of `Ended`. Event loop; what renders goes to a worker thread.

Before the first byte of an answer these are decided, each with a status code of its own: who asks,
the body and its fields, whether the engine takes requests, the prompt as it was rendered, its
length against the context, the grammar, the memory, and the place in the queue. After that a
status can no longer be sent: what fails then is the stream's last event. What the cache has of the
prompt is not known before the first byte, so answers say it at their end.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from keepwarm.events import Delta, Done, Reading, Result
from keepwarm.explain.miss import Miss, Read, find_miss
from keepwarm.explain.recent import Asked, Seen
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.calling import JSON_PARSER, Calling, Dictation, Written
from keepwarm.prompt.follow_up import as_sent_back, follow_up
from keepwarm.prompt.parse import Reply, parse_reply
from keepwarm.prompt.scan import thought_end_tokens
from keepwarm.prompt.split import Called, Piece, Said, Splitter
from keepwarm.server.account import Account, shown_reason
from keepwarm.server.generation import Generation
from keepwarm.server.intake import ChatPlan, Plan
from keepwarm.server.service import Service

log = logging.getLogger("keepwarm.server")


@dataclass(frozen=True, slots=True)
class Began:
    """The prompt of a choice is being read."""

    index: int
    cached_tokens: int  # a guess until the end: more may be found when it had to wait


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing came for a while: time to say something that keeps the client waiting."""

    progress: str  # how far the prompt has been read, while it is


@dataclass(frozen=True, slots=True)
class Spoken:
    """One token of a reply, and what became certain with it: perhaps nothing yet."""

    index: int  # of the choice
    pieces: list[Piece]
    token: Delta | None = None  # None for what was held back until the end
    # What was written of a call: behind `pieces`, but before a call among them that it ends. A
    # protocol may leave it, since the whole call comes as a piece.
    written: tuple[Calling | Written, ...] = ()


@dataclass(frozen=True, slots=True)
class Ended:
    """One reply that has come to its end."""

    index: int
    reply: Reply
    result: Result
    tokens: list[Delta]  # where log probabilities were asked for and nothing was streamed


Heard = Began | Quiet | Spoken | Ended


def compared(plan: Plan, index: int = 0) -> Asked:
    """A prompt and what it was written from, to be compared with others."""
    if isinstance(plan, ChatPlan):
        chat = plan.chat
        return Asked.chat(chat.prompt, chat.messages, chat.tools, chat.template_kwargs)
    return Asked(plan.requests[index].prompt)


class Exchange:
    """One HTTP request's replies, as they are. `stream` or `whole` is to be called, once."""

    def __init__(
        self,
        service: Service,
        plan: Plan,
        generation: Generation,
        *,
        caller: str = "",
        tells_misses: bool = False,
    ) -> None:
        """`caller` is whose prompts it is compared with; with `tells_misses` answers say what was
        read again, too."""
        self.plan = plan
        self._service = service
        self._generation = generation
        self._caller = caller
        self._tells_misses = tells_misses
        self._misses: list[Miss] = []

    @property
    def model_name(self) -> str:
        return self._service.model_name

    @property
    def fingerprint(self) -> str:
        return self._service.fingerprint

    @property
    def tokenizer(self) -> Any:
        """For the texts of single tokens."""
        return self._service.engine.tokenizer

    @property
    def prompt_len(self) -> int:
        """In tokens, of all prompts."""
        return sum(len(r.prompt) for r in self.plan.requests[:: self.plan.asked.num_choices])

    @property
    def is_over(self) -> bool:
        return self._generation.is_over

    @property
    def reasoning_tokens(self) -> int | None:
        """Of the replies that have ended; None where there was no thought."""
        return None

    def account(self) -> Account:
        """Of the replies that have ended."""
        return Account(self._generation.results, self.plan.asked.num_choices)

    def report(self) -> dict[str, Any]:
        """What the cache did, what hygiene changed, and what was left out of the request."""
        said: dict[str, Any] = {"hygiene": list(self.plan.hygiene), "notes": list(self.plan.notes)}
        if self._tells_misses:
            said["misses"] = [miss.as_json() for miss in self._misses]
        return self.account().keepwarm() | {name: words for name, words in said.items() if words}

    async def stream(self) -> AsyncIterator[Heard]:
        """Raises what made a sequence fail."""
        readers = [await self._reader() for _ in self.plan.requests]
        begun: set[int] = set()
        async for heard in self._generation.events(self._service.metrics):
            if heard is None:
                yield Quiet(self._generation.progress)
                continue
            index, event = heard
            reader = readers[index]
            if isinstance(event, Reading):
                if index not in begun:
                    begun.add(index)
                    yield Began(index, event.cached_tokens)
            elif isinstance(event, Delta):
                self._generation.progress = ""
                pieces = reader.push(event.text)
                yield Spoken(index, pieces, event, tuple(reader.take_written()))
            elif isinstance(event, Done) and event.result is not None:
                if rest := reader.end(event.result.finish_reason):
                    yield Spoken(index, rest, written=tuple(reader.take_written()))
                await self._end_turn(index, reader.reply, event.result)
                await self._compare(index, reader.reply, event.result)
                yield Ended(index, reader.reply, event.result, [])

    async def whole(self) -> list[Ended]:
        """Every choice, in order. Raises what made a sequence fail."""
        ended: dict[int, Ended] = {}
        tokens: list[list[Delta]] = [[] for _ in self.plan.requests]
        async for heard in self._generation.events(self._service.metrics):
            if heard is None:
                continue
            index, event = heard
            if isinstance(event, Delta):
                if self.plan.asked.num_logprobs is not None:
                    tokens[index].append(event)
            elif isinstance(event, Done) and event.result is not None:
                reply = await self._read(event.result)
                await self._end_turn(index, reply, event.result)
                await self._compare(index, reply, event.result)
                ended[index] = Ended(index, reply, event.result, tokens[index])
        return [ended[index] for index in sorted(ended)]

    def log_end(self, route: str) -> None:
        self._service.log_end(route, self.account(), self._misses, self._caller)

    async def _compare(self, index: int, reply: Reply, result: Result) -> None:
        """Finds what of a prompt was read again, and remembers it for the next one."""
        if index % self.plan.asked.num_choices:
            return  # its prompt is the first choice's
        try:
            miss = await self._service.in_thread(partial(self._missed, index, reply, result))
        except Exception:
            # It would only have explained.
            log.exception("a prompt could not be compared with the ones before")
            return
        if miss is not None:
            self._misses.append(miss)

    def _missed(self, index: int, reply: Reply, result: Result) -> Miss | None:
        asked, recent = compared(self.plan, index), self._service.recent
        read = Read(result.cached_tokens, shown_reason(result.reason), result.timings.prefill_s)
        tokenizer = self._service.engine.tokenizer
        miss = find_miss(recent, self._caller, asked, read, tokenizer.decode)
        recent.add(self._caller, Seen.of(asked, result.tokens, has_thought=bool(reply.reasoning)))
        hides_text = self._service.config.hide_text
        return miss.without_text() if miss is not None and hides_text else miss

    # What chats do otherwise

    async def _reader(self) -> Reader:
        return Reader()

    async def _read(self, result: Result) -> Reply:
        return Reply(result.text)

    async def _end_turn(self, index: int, reply: Reply, result: Result) -> None:
        """Before the client hears of the end."""


class Reader:
    """One reply as it comes in: as it is, or cut by a splitter."""

    def __init__(self, splitter: Splitter | None = None, tool_names: Collection[str] = ()) -> None:
        """With `tool_names`, those of tools whose calls are JSON, calls are told while they are
        written."""
        self._splitter = splitter
        self._pieces: list[Piece] = []
        self._tool_names = tool_names
        self._dictation: Dictation | None = None
        self._dictated_len = 0
        self._written: list[Calling | Written] = []

    @property
    def reply(self) -> Reply:
        return Reply.of(self._pieces)

    def push(self, text: str) -> list[Piece]:
        """Mutates."""
        if self._splitter is None:
            return self._kept([Said(text)] if text else [])
        return self._kept(self._dictated(self._splitter.push(text)))

    def take_written(self) -> list[Calling | Written]:
        """What came of calls since it was last asked for. Mutates."""
        taken, self._written = self._written, []
        return taken

    def end(self, finish_reason: str) -> list[Piece]:
        """Mutates."""
        if self._splitter is None:
            return []
        return self._kept(self._dictated(self._splitter.end(finish_reason)))

    def _dictated(self, pieces: list[Piece]) -> list[Piece]:
        """`pieces`, a call under the name that it was announced by. Mutates."""
        if not self._tool_names or self._splitter is None:
            return pieces
        dictation = self._dictation
        at = next((i for i, piece in enumerate(pieces) if isinstance(piece, Called)), None)
        if dictation is not None and at is not None:
            self._written += dictation.push(self._splitter.closed_call[self._dictated_len :])
            called = pieces[at]
            if dictation.has_begun and isinstance(called, Called):
                named = replace(called.call, id=dictation.id)
                pieces = [*pieces[:at], replace(called, call=named), *pieces[at + 1 :]]
            self._dictation = None
        text = self._splitter.call_text(self._dictated_len if self._dictation else 0)
        if text is None:
            self._dictation = None
            return pieces
        if self._dictation is None:
            self._dictation, self._dictated_len = Dictation(self._tool_names), 0
        self._dictated_len += len(text)
        if at is None:  # else it begins in the same breath, and is told with the next one
            self._written += self._dictation.push(text)
        else:
            self._dictated_len -= len(text)
        return pieces

    def _kept(self, pieces: list[Piece]) -> list[Piece]:
        self._pieces += pieces
        return pieces


class ChatExchange(Exchange):
    """Replies to a conversation: thoughts, words and calls. When one ends, the engine is told how
    the conversation goes on."""

    def __init__(
        self,
        service: Service,
        plan: ChatPlan,
        generation: Generation,
        *,
        caller: str = "",
        tells_misses: bool = False,
    ) -> None:
        super().__init__(service, plan, generation, caller=caller, tells_misses=tells_misses)
        self._plan = plan
        self._reasoning_tokens: int | None = None

    @property
    def reasoning_tokens(self) -> int | None:
        return self._reasoning_tokens

    async def _reader(self) -> Reader:
        plan = self._plan
        make = partial(Splitter, plan.reader, prompt=plan.chat.prompt, **self._about())
        parser = getattr(plan.reader, "tool_parser", None)
        can_dictate = getattr(parser, "__module__", None) == JSON_PARSER
        names = {tool["function"]["name"] for tool in self._about()["tools"]} if can_dictate else ()
        return Reader(await self._service.in_thread(make), names)

    async def _read(self, result: Result) -> Reply:
        plan, prompt = self._plan, self._plan.chat.prompt
        read = partial(parse_reply, plan.reader, result.text, prompt=prompt, **self._about())
        read = partial(read, finish_reason=result.finish_reason)
        return await self._service.in_thread(read)

    def _about(self) -> dict[str, Any]:
        chat, later = self._plan.chat, self._plan.asked.later_tools
        return {"tools": [*(chat.tools or ()), *later], "template_kwargs": chat.template_kwargs}

    async def _end_turn(self, index: int, reply: Reply, result: Result) -> None:
        """Tells the engine how the conversation goes on, before the client can."""
        self._count_reasoning(reply, result)
        self._count_unread(reply)
        try:
            coming = await self._service.in_thread(partial(self._coming, reply))
            if coming is not None:
                self._generation.follow_up(index, coming)
        except Exception:
            # It would only have made the next turn faster.
            log.exception("what follows a reply could not be rendered")

    def _coming(self, reply: Reply) -> Prompt | None:
        """What the next turn will begin with."""
        messages, tokenizer = self._plan.chat.messages, self._service.engine.tokenizer
        said = as_sent_back(tokenizer, messages, reply.as_message())
        namespace = self._plan.asked.namespace
        about = {**self._about(), "tools": self._plan.chat.tools}  # as they are written in front
        return follow_up(tokenizer, messages, said, namespace=namespace, **about)

    def _count_unread(self, reply: Reply) -> None:
        """A call that can be read is no part of the content, its tag neither."""
        reader = self._plan.reader
        tag = reader.tool_call_start if getattr(reader, "has_tool_calling", False) else None
        if tag and (num_unread := reply.content.count(tag)):
            self._service.metrics.count_unread_calls(num_unread)

    def _count_reasoning(self, reply: Reply, result: Result) -> None:
        if reply.reasoning is None:
            return
        spent = _before(result.tokens, thought_end_tokens(self._plan.reader))
        self._reasoning_tokens = (self._reasoning_tokens or 0) + spent


def _before(tokens: list[int], end: list[int]) -> int:
    """How many tokens come up to the end of a thought; all where it has none."""
    places = range(len(tokens) - len(end) + 1) if end else ()
    found = next((i for i in places if tokens[i : i + len(end)] == end), None)
    return len(tokens) if found is None else found
