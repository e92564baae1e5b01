"""`POST /v1/cache/explain`: any request that the server takes, in any protocol. It is not run."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import Discriminator, Tag
from starlette.requests import Request
from starlette.responses import Response

from keepwarm.explain.miss import Miss, Read, compare
from keepwarm.server import replies
from keepwarm.server.account import shown_reason
from keepwarm.server.asked import Asked
from keepwarm.server.body import BodyRoute
from keepwarm.server.exchange import compared
from keepwarm.server.intake import Plan, plan_of
from keepwarm.server.protocols.chat import read_chat
from keepwarm.server.protocols.completions import read_completion
from keepwarm.server.protocols.messages.read import read_messages
from keepwarm.server.protocols.messages.schema import MessagesRequest
from keepwarm.server.protocols.responses.read import read_response
from keepwarm.server.protocols.responses.schema import ResponsesRequest
from keepwarm.server.protocols.responses.tools import Tools
from keepwarm.server.schema import ChatRequest, CompletionRequest
from keepwarm.server.service import Service


def _protocol_of(body: Any) -> str:
    """The protocol that a body is most likely written in, by fields that the others lack."""
    fields = body if isinstance(body, dict) else {}
    marks = {"input": "responses", "prompt": "completions", "system": "messages"}
    return next((name for field, name in marks.items() if field in fields), "chat")


AnyRequest = Annotated[
    Annotated[ChatRequest, Tag("chat")]
    | Annotated[MessagesRequest, Tag("messages")]
    | Annotated[CompletionRequest, Tag("completions")]
    | Annotated[ResponsesRequest, Tag("responses")],
    Discriminator(_protocol_of),
]

router = APIRouter(route_class=BodyRoute, tags=["Server"])


@router.post(
    "/v1/cache/explain",
    response_model=replies.Explanation,
    responses=replies.problems(400, *replies.GUARDED, 408, 413, 415, 500, 503),
)
async def explain(request: Request, asked: AnyRequest) -> Response:
    """What the cache has of a request's prompt, and where it parts from the nearest one."""
    service: Service = request.app.state.service
    service.check_ready()
    read = _read(request, asked)
    # Within the bounds of a request that runs: replies never wait for a stranger's long prompt.
    plan = await service.render(request.receive, read, partial(plan_of, service, read))
    return JSONResponse(
        await service.in_thread(partial(_explained, service, read, plan, request.state.caller))
    )


@router.get(
    "/v1/cache/requests",
    response_model=replies.Answers,
    responses=replies.problems(400, *replies.GUARDED),
)
async def requests(request: Request, limit: Annotated[int, Query(ge=1, le=100)] = 20) -> Response:
    """The last requests of this key: what each took, and what of it was read again and why."""
    service: Service = request.app.state.service
    return JSONResponse({"data": service.recent.last(request.state.caller, limit)})


def _read(request: Request, body: AnyRequest) -> Asked:
    """Raises ApiError for what its protocol refuses."""
    namespace = request.state.namespace
    match body:
        case ChatRequest():
            return read_chat(body, namespace)
        case MessagesRequest():
            return read_messages(body, namespace)
        case CompletionRequest():
            return read_completion(body, namespace)
        case ResponsesRequest():
            past = request.app.state.responses.past(namespace, body.previous_response_id)
            return read_response(body, past, Tools(body.tools or ()), namespace)


def _explained(service: Service, asked: Asked, plan: Plan, caller: str) -> dict[str, Any]:
    prompt, engine = plan.requests[0].prompt, service.engine

    def look(cache: Any) -> tuple[int, str, float]:
        match = cache.peek(prompt, namespace=asked.namespace)
        prefill_s = cache.cost.prefill_s(match.cached_len, len(prompt))
        return match.cached_len, str(match.reason), prefill_s

    cached_len, reason, prefill_s = engine.call(look)
    read = Read(cached_len, shown_reason(reason), prefill_s)
    miss = compare(service.recent, caller, compared(plan), read, engine.tokenizer.decode)
    if miss is not None and service.config.hide_text:
        miss = miss.without_text()
    return {
        "object": "cache.explanation",
        "prompt_tokens": len(prompt),
        "cached_tokens": cached_len,
        "prefill_s": round(prefill_s, 4),
        "reason": read.reason,
        "nearest": None if miss is None else miss.as_json(),
        "words": _words(len(prompt), read, miss),
    }


def _words(prompt_len: int, read: Read, miss: Miss | None) -> str:
    lines = [
        f"{read.cached_len:,} of {prompt_len:,} tokens are cached ({read.reason});"
        f" {prompt_len - read.cached_len:,} would be read, about {read.prefill_s:.1f} s."
    ]
    if miss is None:
        lines.append("No prompt of this caller was read since the server started.")
    else:
        words = miss.words.replace("tokens read again", "tokens would be read again")
        lines.append(f"It {words}.")
        if miss.advice:
            lines.append(f"Advice: {miss.advice}.")
    return "\n".join(lines)
