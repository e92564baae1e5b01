"""What the answers to chats and to completions share. Event loop only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from time import time
from typing import Any

from fastapi.responses import JSONResponse

from keepwarm.events import Delta, Done, Result
from keepwarm.server.account import Account
from keepwarm.server.generation import Generation
from keepwarm.server.service import Service, new_id


class Answer(ABC):
    """The answer to one request that was submitted, as a whole; streams are each kind's own."""

    route: str
    id_kind: str
    object_name: str

    def __init__(self, service: Service, generation: Generation, *, num_choices: int) -> None:
        """`num_choices` are those of each prompt."""
        self._service = service
        self._generation = generation
        self._num_choices = num_choices
        self._id = new_id(self.id_kind)
        self._created = int(time())

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
                choices[index] = await self._choice_of(index, event.result)
        listed = [choices[index] for index in sorted(choices)]
        answer = self._head(self.object_name) | {"choices": listed} | self._cost()
        self._log_end()
        return JSONResponse(answer)

    @abstractmethod
    def _note_logprob(self, index: int, delta: Delta) -> None:
        """Keep the log probability of a token for the choice it belongs to. Mutates."""

    @abstractmethod
    async def _choice_of(self, index: int, result: Result) -> dict[str, Any]:
        """A choice that has ended."""

    @property
    def _is_all(self) -> bool:
        return self._generation.is_over

    def _account(self) -> Account:
        return Account(self._generation.results, self._num_choices)

    def _cost(self) -> dict[str, Any]:
        """What it cost, in OpenAI's words and in ours."""
        account = self._account()
        return {"usage": self._usage(account), "keepwarm": account.keepwarm()}

    def _usage(self, account: Account) -> dict[str, Any]:
        return account.usage()

    def _head(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": object_name,
            "created": self._created,
            "model": self._service.model_name,
        }

    def _log_end(self) -> None:
        self._service.log_end(self.route, self._account())
