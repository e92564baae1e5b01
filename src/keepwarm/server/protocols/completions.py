"""OpenAI's plain completions. Event loop only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import JSONResponse

from keepwarm.events import Delta
from keepwarm.server.asked import AskedTexts
from keepwarm.server.exchange import Ended, Exchange, Quiet, Spoken
from keepwarm.server.intake import TextPlan
from keepwarm.server.logprobs import text_entries
from keepwarm.server.protocols.openai_form import OpenAIWriter
from keepwarm.server.schema import CompletionRequest
from keepwarm.server.stream import DONE, comment, data


def read_completion(body: CompletionRequest, namespace: str) -> AskedTexts:
    field, grammar = body.asked_grammar() or ("", None)
    return AskedTexts(
        namespace=namespace,
        streams=bool(body.stream),
        num_choices=body.num_choices,
        max_tokens=body.token_limit,
        sampling=body.sampling(),
        stop=body.stop,
        grammar=grammar,
        grammar_field=field,
        num_logprobs=body.num_logprobs,
        ignore_eos=bool(body.ignore_eos),
        prompts=tuple(body.prompt),
        echoes=bool(body.echo),
    )


class CompletionWriter(OpenAIWriter):
    """The answer to one request for completions."""

    route = "/v1/completions"
    id_kind = "cmpl"
    object_name = "text_completion"

    def __init__(self, exchange: Exchange, *, includes_usage: bool) -> None:
        super().__init__(exchange, includes_usage=includes_usage)
        assert isinstance(exchange.plan, TextPlan)
        self._tokens: list[list[Delta]] = [[] for _ in exchange.plan.requests]
        self._offsets = list(exchange.plan.text_lens)
        self._echoed = exchange.plan.echoed

    async def events(self) -> AsyncIterator[bytes]:
        for index, text in enumerate(self._echoed):
            yield self._chunk([self._choice(index, text)], {})
        async for heard in self.exchange.stream():
            match heard:
                case Quiet(progress):
                    yield comment(progress or "keep-alive")
                case Spoken(index, _, token) if token is not None:
                    self._note_logprob(index, token)
                    if token.text:
                        yield self._chunk([self._choice(index, token.text)], {})
                case Ended(index, _, result):
                    finish = self._choice(index, "", result.finish_reason)
                    yield self._chunk([finish], self._last_words())
        if self.includes_usage:
            yield self._chunk([], self.cost())
        self.exchange.log_end(self.route)
        yield DONE

    async def whole(self) -> JSONResponse:
        return self.whole_of([self._whole_choice(ended) for ended in await self.exchange.whole()])

    def _whole_choice(self, ended: Ended) -> dict[str, Any]:
        for token in ended.tokens:
            self._note_logprob(ended.index, token)
        choice = self._choice(ended.index, ended.result.text, ended.result.finish_reason)
        if self._echoed:
            choice["text"] = self._echoed[ended.index] + choice["text"]
        if self._echoed and choice["logprobs"] is not None:
            choice["logprobs"] = self._echo_logprobs(ended, choice["logprobs"])
        return choice

    def _echo_logprobs(self, ended: Ended, reply: dict[str, Any]) -> dict[str, Any]:
        """Those of the prompt before those of the reply."""
        prompt = self.exchange.plan.requests[ended.index].prompt
        num_top = self.exchange.plan.asked.num_logprobs or 0
        first = Delta(token=int(prompt.tokens[0]))
        scored = [
            Delta(token=score.token, logprob=score.logprob, top_logprobs=score.top_logprobs)
            for score in ended.result.scores
        ]
        echoed = text_entries(self.exchange.tokenizer, [first, *scored], 0, num_top)
        echoed["top_logprobs"][0] = None
        return {name: [*echoed[name], *reply[name]] for name in echoed}

    def _chunk(self, choices: list[dict[str, Any]], ending: dict[str, Any]) -> bytes:
        return data(self.head(self.object_name) | {"choices": choices} | ending)

    def _choice(self, index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._taken_logprobs(index),
            "finish_reason": finish,
        }

    def _note_logprob(self, index: int, token: Delta) -> None:
        if self.exchange.plan.asked.num_logprobs is not None and token.logprob is not None:
            self._tokens[index].append(token)

    def _taken_logprobs(self, index: int) -> dict[str, Any] | None:
        """What came since it was last asked for. Mutates."""
        num_top = self.exchange.plan.asked.num_logprobs
        if num_top is None:
            return None
        tokens, self._tokens[index] = self._tokens[index], []
        entries = text_entries(self.exchange.tokenizer, tokens, self._offsets[index], num_top)
        self._offsets[index] += len("".join(entries["tokens"]))
        return entries
