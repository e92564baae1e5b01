"""Plain completions, whole or as a stream. Event loop only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from keepwarm.events import Delta, Done, Result
from keepwarm.server.answer import Answer
from keepwarm.server.generation import Generation
from keepwarm.server.intake import CompletionPlan
from keepwarm.server.logprobs import text_entries
from keepwarm.server.service import Service
from keepwarm.server.stream import comment, data


class CompletionAnswer(Answer):
    """The answer to one request for completions, once it was submitted."""

    route = "/v1/completions"
    id_kind = "cmpl"
    object_name = "text_completion"

    def __init__(self, service: Service, plan: CompletionPlan, generation: Generation) -> None:
        super().__init__(service, generation, num_choices=plan.num_choices)
        self._plan = plan
        self._deltas: list[list[Delta]] = [[] for _ in plan.requests]
        self._offsets = list(plan.text_lens)

    async def _choice_of(self, index: int, result: Result) -> dict[str, Any]:
        return self._choice(index, result.text, result.finish_reason)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Server-sent events. Raises what made a sequence fail."""
        async for heard in self._generation.events(self._service.metrics):
            if heard is None:
                yield comment(self._generation.progress or "keep-alive")
                continue
            index, event = heard
            if isinstance(event, Delta):
                self._generation.progress = ""
                self._note_logprob(index, event)
                if event.text:
                    yield self._chunk([self._choice(index, event.text)], {})
            elif isinstance(event, Done) and event.result is not None:
                finish = self._choice(index, "", event.result.finish_reason)
                says_cost = self._is_all and not self._plan.includes_usage
                ending = {"keepwarm": self._account().keepwarm()} if says_cost else {}
                yield self._chunk([finish], ending)
        if self._plan.includes_usage:
            yield self._chunk([], self._cost())
        self._log_end()

    def _chunk(self, choices: list[dict[str, Any]], ending: dict[str, Any]) -> bytes:
        return data(self._head(self.object_name) | {"choices": choices} | ending)

    def _choice(self, index: int, text: str, finish: str | None = None) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._taken_logprobs(index),
            "finish_reason": finish,
        }

    def _note_logprob(self, index: int, delta: Delta) -> None:
        if self._plan.num_logprobs is not None and delta.logprob is not None:
            self._deltas[index].append(delta)

    def _taken_logprobs(self, index: int) -> dict[str, Any] | None:
        """What came since it was last asked for. Mutates."""
        num_top = self._plan.num_logprobs
        if num_top is None:
            return None
        tokenizer = self._service.engine.tokenizer
        deltas, self._deltas[index] = self._deltas[index], []
        entries = text_entries(tokenizer, deltas, self._offsets[index], num_top)
        self._offsets[index] += len("".join(entries["tokens"]))
        return entries
