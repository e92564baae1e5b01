"""What OpenAI's chats and completions share. Event loop only."""

from __future__ import annotations

from time import time
from typing import Any, ClassVar

from starlette.responses import JSONResponse

from keepwarm.server.errors import ApiError
from keepwarm.server.exchange import Exchange
from keepwarm.server.protocols.writer import Writer
from keepwarm.server.service import new_id
from keepwarm.server.stream import data


class OpenAIWriter(Writer):
    """Choices in one list, the cost beside them."""

    id_kind: ClassVar[str]
    object_name: ClassVar[str]

    def __init__(self, exchange: Exchange, *, includes_usage: bool) -> None:
        """`includes_usage`: a stream has one more event, for its cost."""
        super().__init__(exchange)
        self.includes_usage = includes_usage
        self._id = new_id(self.id_kind)
        self._created = int(time())

    def failure(self, error: ApiError) -> bytes:
        return data(error.body())

    def head(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": object_name,
            "created": self._created,
            "model": self.exchange.model_name,
            "system_fingerprint": self.exchange.fingerprint,
        }

    def cost(self) -> dict[str, Any]:
        """What it cost, in OpenAI's words and in ours."""
        usage = self.exchange.account().usage(self.exchange.reasoning_tokens)
        return {"usage": usage, "keepwarm": self.exchange.report()}

    def whole_of(self, choices: list[dict[str, Any]]) -> JSONResponse:
        answer = self.head(self.object_name) | {"choices": choices} | self.cost()
        self.exchange.log_end(self.route)
        return JSONResponse(answer)

    def _last_words(self) -> dict[str, Any]:
        """For the last chunk of the last choice, unless the cost comes in one of its own."""
        if self.includes_usage or not self.exchange.is_over:
            return {}
        return {"keepwarm": self.exchange.report()}
