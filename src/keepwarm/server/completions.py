"""Plain completions, whole or as a stream. Event loop only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import time
from typing import Any

from fastapi.responses import JSONResponse

from keepwarm.events import Delta, Done
from keepwarm.server.account import Account
from keepwarm.server.generation import Generation
from keepwarm.server.intake import CompletionPlan
from keepwarm.server.logprobs import text_entries
from keepwarm.server.service import Service, new_id
from keepwarm.server.stream import comment, data

ROUTE = "/v1/completions"


class CompletionAnswer:
    """The answer to one request for completions, once it was submitted."""

    def __init__(self, service: Service, plan: CompletionPlan, generation: Generation) -> None:
        self._service = service
        self._plan = plan
        self._generation = generation
        self._id = new_id("cmpl")
        self._created = int(time())
        self._deltas: list[list[Delta]] = [[] for _ in plan.requests]
        self._offsets = [0] * len(plan.requests)

    async def whole(self) -> JSONResponse:
        """Raises what made a sequence fail."""
        choices: dict[int, dict[str, Any]] = {}
        async for heard in self._generation.events(self._service.metrics):
            if heard is None:
                continue
            index, event = heard
            if isinstance(event, Delta):
                self._note_logprob(index, event)
            elif isinstance(event, Done) and event.result is not None:
                result = event.result
                choices[index] = self._choice(index, result.text, result.finish_reason)
        account = self._account()
        self._service.log_end(ROUTE, account)
        return JSONResponse(
            self._head()
            | {
                "choices": [choices[index] for index in sorted(choices)],
                "usage": account.usage(),
                "keepwarm": account.keepwarm(),
            }
        )

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
                    yield data(self._head() | {"choices": [self._choice(index, event.text)]})
            elif isinstance(event, Done) and event.result is not None:
                finish = self._choice(index, "", event.result.finish_reason)
                is_all = len(self._generation.results) == len(self._plan.requests)
                ending = {"keepwarm": self._account().keepwarm()}
                says_cost = is_all and not self._plan.includes_usage
                yield data(self._head() | {"choices": [finish]} | (ending if says_cost else {}))
        account = self._account()
        if self._plan.includes_usage:
            cost = {"usage": account.usage(), "keepwarm": account.keepwarm()}
            yield data(self._head() | {"choices": []} | cost)
        self._service.log_end(ROUTE, account)

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

    def _account(self) -> Account:
        return Account(self._generation.results, self._plan.num_choices)

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._service.model_name,
        }
