"""The routes of the Responses API."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.responses import Response

from keepwarm.server import replies
from keepwarm.server.body import BodyRoute
from keepwarm.server.protocols.responses import replies as its_replies
from keepwarm.server.protocols.responses.read import read_response
from keepwarm.server.protocols.responses.schema import ResponsesRequest
from keepwarm.server.protocols.responses.store import Store
from keepwarm.server.protocols.responses.tools import Tools
from keepwarm.server.protocols.responses.write import ResponsesWriter
from keepwarm.server.protocols.writer import answer

router = APIRouter(route_class=BodyRoute, tags=["OpenAI"])


@router.post(
    "/v1/responses",
    response_model=its_replies.Response,
    responses={200: replies.EVENTS, **replies.problems(*replies.GENERATES)},
)
async def responses(request: Request, asked: ResponsesRequest) -> Response:
    """Continue a conversation of items."""
    store = _store(request)
    namespace = request.state.namespace
    past = store.past(namespace, asked.previous_response_id)
    tools = Tools(asked.tools or ())
    chat = read_response(asked, past, tools, namespace)
    return await answer(
        request, chat, partial(ResponsesWriter, body=asked, tools=tools, store=store)
    )


@router.get(
    "/v1/responses/{name}",
    response_model=its_replies.Response,
    responses=replies.problems(*replies.GUARDED, 404),
)
async def response(request: Request, name: str) -> Response:
    """A response that is still kept."""
    return JSONResponse(_store(request).get(request.state.namespace, name).response)


@router.delete(
    "/v1/responses/{name}",
    response_model=its_replies.Deleted,
    responses=replies.problems(*replies.GUARDED, 404),
)
async def delete_response(request: Request, name: str) -> Response:
    """Forget a response. What went on from it can go on no more."""
    _store(request).delete(request.state.namespace, name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


def _store(request: Request) -> Store:
    store: Store = request.app.state.responses
    return store
