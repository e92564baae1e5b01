"""How a request is answered, whatever its protocol: checked, planned, submitted, then written as a
stream or as a whole. Event loop only."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import ClassVar
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from keepwarm.server.asked import Asked
from keepwarm.server.errors import ApiError, as_api_error
from keepwarm.server.exchange import ChatExchange, Exchange
from keepwarm.server.intake import ChatPlan, plan_of
from keepwarm.server.log import printable
from keepwarm.server.service import Service
from keepwarm.server.stream import EventStream, while_connected

log = logging.getLogger("keepwarm.server")

# What was left out of a request, as a header.
NOTES_HEADER = "x-keepwarm-notes"
# With 1, the answer says what was read again, where prompts part, and why.
MISSES_HEADER = "x-keepwarm-misses"
# All that a header may hold but for "%".
_PLAIN = "".join(chr(i) for i in range(0x20, 0x7F) if chr(i) != "%")


class Writer(ABC):
    """Writes the answer to one request that was submitted."""

    route: ClassVar[str]

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    @abstractmethod
    def events(self) -> AsyncIterator[bytes]:
        """The whole stream. Raises what made a sequence fail."""

    @abstractmethod
    def failure(self, error: ApiError) -> bytes:
        """The last event of a stream that failed."""

    @abstractmethod
    async def whole(self) -> Response:
        """Raises what made a sequence fail."""

    async def guarded(self) -> AsyncIterator[bytes]:
        """`events`; what fails on the way is told as the last of them."""
        try:
            async for event in self.events():
                yield event
        except Exception as error:
            yield self.failure(as_api_error(error))


async def answer(request: Request, asked: Asked, write: Callable[[Exchange], Writer]) -> Response:
    """Raises ApiError for all that is decided before the first byte."""
    service: Service = request.app.state.service
    service.check_ready()
    plan = await service.render(request.receive, asked, partial(plan_of, service, asked))
    generation = service.generation(plan.requests, asked.prompt_field)
    caller = request.state.caller
    tells = request.headers.get(MISSES_HEADER, "").lower() in ("1", "true", "yes")
    if isinstance(plan, ChatPlan):
        chat = ChatExchange(service, plan, generation, caller=caller, tells_misses=tells)
        writer = write(chat)
    else:
        writer = write(Exchange(service, plan, generation, caller=caller, tells_misses=tells))
    if asked.streams:
        response: Response = EventStream(generation, writer.guarded())
    else:
        response = await while_connected(request.receive, generation, writer.whole)
    if plan.notes:
        words = "; ".join(plan.notes)
        log.info("%s: %s", writer.route, printable(words))
        response.headers[NOTES_HEADER] = quote(words, safe=_PLAIN)
    return response
