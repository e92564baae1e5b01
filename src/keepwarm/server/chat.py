"""Chats: replies taken apart into thoughts, words and calls, whole or as a stream. Event loop;
what renders goes to a worker thread."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

from keepwarm.events import Delta, Done, Result
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.follow_up import as_sent_back, follow_up
from keepwarm.prompt.parse import Reply, parse_reply
from keepwarm.prompt.split import Called, Piece, Said, Splitter, Thought
from keepwarm.server.account import Account
from keepwarm.server.answer import Answer
from keepwarm.server.generation import Generation
from keepwarm.server.intake import ChatPlan
from keepwarm.server.logprobs import chat_entry
from keepwarm.server.service import Service
from keepwarm.server.stream import comment, data

log = logging.getLogger("keepwarm.server")


class ChatAnswer(Answer):
    """The answer to one chat, once it was submitted."""

    route = "/v1/chat/completions"
    id_kind = "chatcmpl"
    object_name = "chat.completion"

    def __init__(self, service: Service, plan: ChatPlan, generation: Generation) -> None:
        super().__init__(service, generation, num_choices=len(plan.requests))
        self._plan = plan
        self._logprobs: list[list[dict[str, Any]]] = [[] for _ in plan.requests]
        self._reasoning_tokens: int | None = None

    async def _choice_of(self, index: int, result: Result) -> dict[str, Any]:
        plan = self._plan
        reply = await self._service.in_thread(
            partial(
                parse_reply,
                plan.reader,
                result.text,
                prompt=plan.prompt,
                tools=plan.tools,
                template_kwargs=plan.template_kwargs,
            )
        )
        await self._end_turn(index, reply, result)
        return {
            "index": index,
            "message": reply.as_message(),
            "logprobs": self._taken_logprobs(index),
            "finish_reason": _finish_reason(reply, result),
        }

    # As a stream

    async def chunks(self) -> AsyncIterator[bytes]:
        """Server-sent events. Raises what made a sequence fail."""
        streams = [_ChoiceStream(await self._splitter()) for _ in self._plan.requests]
        async for heard in self._generation.events(self._service.metrics):
            if heard is None:
                yield comment(self._generation.progress or "keep-alive")
                continue
            index, event = heard
            stream = streams[index]
            if isinstance(event, Delta):
                self._generation.progress = ""
                self._note_logprob(index, event)
                for delta in stream.push(event.text):
                    yield self._chunk(index, delta)
            elif isinstance(event, Done) and event.result is not None:
                for delta in stream.end():
                    yield self._chunk(index, delta)
                await self._end_turn(index, stream.reply, event.result)
                yield self._last_chunk(index, stream.reply, event.result)
        if self._plan.includes_usage:
            yield data(self._head(_CHUNK) | {"choices": []} | self._cost())
        self._log_end()

    async def _splitter(self) -> Splitter:
        plan = self._plan
        return await self._service.in_thread(
            partial(
                Splitter,
                plan.reader,
                prompt=plan.prompt,
                tools=plan.tools,
                template_kwargs=plan.template_kwargs,
            )
        )

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: str | None = None, **ending: Any
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._taken_logprobs(index),
            "finish_reason": finish,
        }
        return data(self._head(_CHUNK) | {"choices": [choice]} | ending)

    def _last_chunk(self, index: int, reply: Reply, result: Result) -> bytes:
        says_cost = self._is_all and not self._plan.includes_usage
        ending = {"keepwarm": self._account().keepwarm()} if says_cost else {}
        return self._chunk(index, {}, _finish_reason(reply, result), **ending)

    # For both

    async def _end_turn(self, index: int, reply: Reply, result: Result) -> None:
        """Tells the engine how the conversation goes on, before the client can."""
        self._count_reasoning(reply, result)
        try:
            coming = await self._service.in_thread(partial(self._coming, reply))
            if coming is not None:
                self._generation.follow_up(index, coming)
        except Exception:
            # It would only have made the next turn faster.
            log.exception("what follows a reply could not be rendered")

    def _coming(self, reply: Reply) -> Prompt | None:
        """What the next turn will begin with."""
        plan, tokenizer = self._plan, self._service.engine.tokenizer
        said = as_sent_back(tokenizer, plan.messages, reply.as_message())
        return follow_up(
            tokenizer,
            plan.messages,
            said,
            tools=plan.tools,
            template_kwargs=plan.template_kwargs,
            namespace=plan.requests[0].namespace,
        )

    def _count_reasoning(self, reply: Reply, result: Result) -> None:
        if reply.reasoning is None:
            return
        ends = getattr(self._plan.reader, "think_end_tokens", None) or ()
        spent = _before(result.tokens, list(ends))
        self._reasoning_tokens = (self._reasoning_tokens or 0) + spent

    def _note_logprob(self, index: int, delta: Delta) -> None:
        num_top = self._plan.num_logprobs
        if num_top is not None and delta.logprob is not None:
            self._logprobs[index].append(chat_entry(self._plan.reader, delta, num_top))

    def _taken_logprobs(self, index: int) -> dict[str, Any] | None:
        """What came since it was last asked for. Mutates."""
        if self._plan.num_logprobs is None:
            return None
        taken, self._logprobs[index] = self._logprobs[index], []
        return {"content": taken, "refusal": None}

    def _usage(self, account: Account) -> dict[str, Any]:
        return account.usage(self._reasoning_tokens)


_CHUNK = "chat.completion.chunk"


class _ChoiceStream:
    """The deltas of one choice."""

    def __init__(self, splitter: Splitter) -> None:
        self._splitter = splitter
        self._pieces: list[Piece] = []
        self._is_begun = False

    @property
    def reply(self) -> Reply:
        return Reply.of(self._pieces)

    def push(self, text: str) -> list[dict[str, Any]]:
        """Mutates."""
        return self._deltas(self._splitter.push(text))

    def end(self) -> list[dict[str, Any]]:
        """Mutates."""
        return self._deltas(self._splitter.end())

    def _deltas(self, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        deltas = []
        for piece in pieces:
            self._pieces.append(piece)
            delta = _delta(piece)
            if delta is not None:
                deltas.append(delta)
        if not self._is_begun:
            self._is_begun = True
            deltas.insert(0, {"role": "assistant", "content": ""})
        return deltas


def _delta(piece: Piece) -> dict[str, Any] | None:
    match piece:
        case Said(text) if text:
            return {"content": text}
        case Thought(text) if text:
            return {"reasoning_content": text}
        case Called(index, call):
            function = {"name": call.name, "arguments": call.arguments}
            called = {"index": index, "id": call.id, "type": "function", "function": function}
            return {"tool_calls": [called]}
    return None


def _finish_reason(reply: Reply, result: Result) -> str:
    is_called = reply.tool_calls and result.finish_reason == "stop"
    return "tool_calls" if is_called else result.finish_reason


def _before(tokens: list[int], end: list[int]) -> int:
    """How many tokens come up to the end of a thought; all where it has none."""
    places = range(len(tokens) - len(end) + 1) if end else ()
    found = next((i for i in places if tokens[i : i + len(end)] == end), None)
    return len(tokens) if found is None else found
