"""The routes of Anthropic's clients."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.responses import Response

from keepwarm.prompt.bounds import Bounds
from keepwarm.server import replies
from keepwarm.server.body import BodyRoute
from keepwarm.server.intake import rendered_chat
from keepwarm.server.protocols.messages import replies as its_replies
from keepwarm.server.protocols.messages.read import read_conversation, read_messages
from keepwarm.server.protocols.messages.schema import CountTokensRequest, MessagesRequest
from keepwarm.server.protocols.messages.write import MessagesWriter
from keepwarm.server.protocols.writer import answer
from keepwarm.server.service import Service, counting

router = APIRouter(route_class=BodyRoute, tags=["Anthropic"])


@router.post(
    "/v1/messages",
    response_model=its_replies.Message,
    responses={200: replies.EVENTS, **its_replies.problems(*replies.GENERATES)},
)
async def messages(request: Request, asked: MessagesRequest) -> Response:
    """Continue a conversation."""
    hides = asked.thinking is not None and asked.thinking.display == "omitted"
    write = partial(MessagesWriter, hides_thoughts=hides)
    return await answer(request, read_messages(asked, request.state.namespace), write)


@router.post(
    "/v1/messages/count_tokens",
    response_model=its_replies.TokenCount,
    responses=its_replies.problems(400, *replies.GUARDED, 408, 413, 415, 500, 503),
)
async def count_tokens(request: Request, asked: CountTokensRequest) -> Response:
    """How many tokens a conversation has as the model reads it."""
    service: Service = request.app.state.service
    service.check_ready()
    chat = read_conversation(asked, request.state.namespace)

    def count(bounds: Bounds) -> int:
        return len(rendered_chat(service, chat, bounds=counting(bounds)).prompt)

    return JSONResponse({"input_tokens": await service.render(request.receive, chat, count)})
