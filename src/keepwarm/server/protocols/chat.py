"""OpenAI's chat completions. Event loop only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import Any

from starlette.responses import JSONResponse

from keepwarm.events import Delta
from keepwarm.prompt.reply import Called, Piece, Reply, Said, Thought
from keepwarm.prompt.scan import scanner_of
from keepwarm.server.asked import AskedChat, ToolChoice
from keepwarm.server.exchange import Ended, Exchange, Quiet, Spoken
from keepwarm.server.intake import ChatPlan
from keepwarm.server.logprobs import SortedTokens, chat_entry
from keepwarm.server.protocols.openai_form import OpenAIWriter
from keepwarm.server.schema import ChatRequest, Conversation, NamedTool
from keepwarm.server.stream import DONE, comment, data

_CHUNK = "chat.completion.chunk"


def read_chat(body: ChatRequest, namespace: str) -> AskedChat:
    field, grammar = body.asked_grammar() or ("", None)
    return replace(
        read_conversation(body, namespace),
        streams=bool(body.stream),
        num_choices=body.num_choices,
        max_tokens=body.token_limit,
        sampling=body.sampling(),
        stop=body.stop,
        grammar=grammar,
        grammar_field=field,
        num_logprobs=body.num_logprobs,
        has_thought_logprobs=bool(body.reasoning_logprobs),
        ignore_eos=bool(body.ignore_eos),
        tool_choice=_tool_choice(body),
    )


def read_conversation(body: Conversation, namespace: str) -> AskedChat:
    """What the template writes, and nothing else yet."""
    return AskedChat(
        namespace=namespace,
        messages=body.plain_messages(),
        tools=body.plain_tools(),
        thinking=body.asked_thinking(),
        template_kwargs=body.chat_template_kwargs or {},
    )


def _tool_choice(body: ChatRequest) -> ToolChoice:
    choice, is_parallel = body.tool_choice, body.parallel_tool_calls is not False
    if isinstance(choice, NamedTool):
        return ToolChoice("required", (choice.function.name,), is_parallel=False)
    return ToolChoice(choice or "auto", is_parallel=is_parallel)


class ChatWriter(OpenAIWriter):
    """The answer to one chat."""

    route = "/v1/chat/completions"
    id_kind = "chatcmpl"
    object_name = "chat.completion"

    def __init__(self, exchange: Exchange, *, includes_usage: bool) -> None:
        super().__init__(exchange, includes_usage=includes_usage)
        asked = exchange.plan.asked
        assert isinstance(exchange.plan, ChatPlan) and isinstance(asked, AskedChat)
        self._begun: set[int] = set()
        self._logprobs: list[_Logprobs] | None = None
        if asked.num_logprobs is not None:
            self._logprobs = [_Logprobs(exchange, exchange.plan) for _ in exchange.plan.requests]

    async def events(self) -> AsyncIterator[bytes]:
        async for heard in self.exchange.stream():
            match heard:
                case Quiet(progress):
                    yield comment(progress or "keep-alive")
                case Spoken(index, pieces, token):
                    if self._logprobs is not None:
                        self._logprobs[index].note(pieces, token)
                    for delta in self._deltas(index, pieces):
                        yield self._chunk(index, delta)
                case Ended(index, reply, result):
                    if self._logprobs is not None:
                        self._logprobs[index].end(reply, result.finish_reason)
                    for delta in self._deltas(index, []):
                        yield self._chunk(index, delta)
                    finish = _finish_reason(reply, result.finish_reason)
                    yield self._chunk(index, {}, finish, **self._last_words())
        if self.includes_usage:
            yield data(self.head(_CHUNK) | {"choices": []} | self.cost())
        self.exchange.log_end(self.route)
        yield DONE

    async def whole(self) -> JSONResponse:
        return self.whole_of([self._choice(ended) for ended in await self.exchange.whole()])

    def _choice(self, ended: Ended) -> dict[str, Any]:
        if self._logprobs is not None:
            for token in ended.tokens:
                self._logprobs[ended.index].note([Said(ended.reply.content)], token)
            self._logprobs[ended.index].end(ended.reply, ended.result.finish_reason)
        return {
            "index": ended.index,
            "message": ended.reply.as_message(),
            "logprobs": self._taken_logprobs(ended.index),
            "finish_reason": _finish_reason(ended.reply, ended.result.finish_reason),
        }

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: str | None = None, **ending: Any
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._taken_logprobs(index),
            "finish_reason": finish,
        }
        return data(self.head(_CHUNK) | {"choices": [choice]} | ending)

    def _deltas(self, index: int, pieces: list[Piece]) -> list[dict[str, Any]]:
        """Mutates: the first of a choice says who speaks."""
        deltas = [delta for piece in pieces if (delta := _delta(piece)) is not None]
        if index not in self._begun:
            self._begun.add(index)
            deltas.insert(0, {"role": "assistant", "content": ""})
        return deltas

    def _taken_logprobs(self, index: int) -> dict[str, Any] | None:
        """What came since it was last asked for. Mutates."""
        return None if self._logprobs is None else self._logprobs[index].take()


class _Logprobs:
    """Those of one choice: of its content, and of its thought where that is asked for."""

    def __init__(self, exchange: Exchange, plan: ChatPlan) -> None:
        assert isinstance(plan.asked, AskedChat)
        self._tokenizer = exchange.tokenizer
        self._num_top = plan.asked.num_logprobs or 0
        self._tokens = SortedTokens(scanner_of(plan.reader, plan.chat.prompt, plan.chat.tools))
        self._content = ""  # all that was shown
        self._names = {"normal": "content"}
        if plan.asked.has_thought_logprobs:
            self._names["reasoning"] = "reasoning_content"
        self._entries: dict[str, list[dict[str, Any]]] = self._none()

    def note(self, pieces: Iterable[Piece], token: Delta | None) -> None:
        """`pieces` were shown with `token`. Mutates."""
        said = "".join(piece.text for piece in pieces if isinstance(piece, Said))
        self._content = self._content or said  # how it begins is all that matters
        if token is not None:
            self._keep(self._tokens.push(token, self._content))

    def end(self, reply: Reply, finish_reason: str) -> None:
        """Mutates."""
        self._keep(self._tokens.end(finish_reason, reply.content))

    def take(self) -> dict[str, Any]:
        """What came since it was last asked for. Mutates."""
        taken, self._entries = self._entries, self._none()
        return {**taken, "refusal": None}

    def _none(self) -> dict[str, list[dict[str, Any]]]:
        return {name: [] for name in self._names.values()}

    def _keep(self, tokens: Iterable[tuple[str, Delta]]) -> None:
        for kind, token in tokens:
            if kind in self._names and token.logprob is not None:
                entry = chat_entry(self._tokenizer, token, self._num_top)
                self._entries[self._names[kind]].append(entry)


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


def _finish_reason(reply: Reply, reason: str) -> str:
    return "tool_calls" if reply.tool_calls and reason == "stop" else reason
