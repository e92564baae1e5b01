"""The routes that OpenAI's clients know, and /tokenize. Each checks, plans and answers."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.requests import Request
from starlette.responses import Response

from keepwarm.launch.catalogue import card
from keepwarm.prompt.bounds import Bounds
from keepwarm.server import replies
from keepwarm.server.asked import AskedChat, AskedTexts
from keepwarm.server.body import BodyRoute
from keepwarm.server.errors import ApiError
from keepwarm.server.intake import rendered_chat, text_prompt
from keepwarm.server.protocols.chat import ChatWriter, read_chat, read_conversation
from keepwarm.server.protocols.completions import CompletionWriter, read_completion
from keepwarm.server.protocols.writer import answer
from keepwarm.server.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from keepwarm.server.service import Service, counting

router = APIRouter(route_class=BodyRoute)


@router.post(
    "/v1/chat/completions",
    response_model=replies.ChatCompletion,
    responses={200: replies.EVENTS, **replies.problems(*replies.GENERATES)},
    tags=["OpenAI"],
)
async def chat_completions(request: Request, asked: ChatRequest) -> Response:
    """Continue a conversation."""
    write = partial(ChatWriter, includes_usage=asked.includes_usage)
    return await answer(request, read_chat(asked, request.state.namespace), write)


@router.post(
    "/v1/completions",
    response_model=replies.Completion,
    responses={200: replies.EVENTS, **replies.problems(*replies.GENERATES)},
    tags=["OpenAI"],
)
async def completions(request: Request, asked: CompletionRequest) -> Response:
    """Continue one or more texts."""
    write = partial(CompletionWriter, includes_usage=asked.includes_usage)
    return await answer(request, read_completion(asked, request.state.namespace), write)


@router.get(
    "/v1/models",
    response_model=replies.ModelList,
    responses=replies.problems(*replies.GUARDED),
    tags=["OpenAI"],
)
async def models(request: Request) -> Response:
    """The model that answers, whatever name a request gives."""
    about = _card(_service(request))
    page = {"has_more": False, "first_id": about["id"], "last_id": about["id"]}
    codex = [card(about["id"], about["max_model_len"])]
    return JSONResponse({"object": "list", "data": [about], **page, "models": codex})


@router.get(
    "/v1/models/{name:path}",
    response_model=replies.ModelCard,
    responses=replies.problems(*replies.GUARDED, 404),
    tags=["OpenAI"],
)
async def model(request: Request, name: str) -> Response:
    """The same model, by its name, the last part of it, or `default`."""
    service = _service(request)
    if not service.is_called(name):
        words = "there is no model of this name; see /v1/models"
        raise ApiError(404, words, param="model", code="model_not_found")
    return JSONResponse(_card(service))


@router.post(
    "/tokenize",
    response_model=replies.Tokenized,
    responses=replies.problems(400, *replies.GUARDED, 408, 413, 415, 500, 503),
    tags=["Server"],
)
async def tokenize(request: Request, asked: TokenizeRequest) -> Response:
    """The tokens of a text, or of messages as the chat template writes them."""
    service = _service(request)
    service.check_ready()
    namespace = request.state.namespace
    made: AskedChat | AskedTexts
    if asked.prompt is not None:
        made = AskedTexts(prompts=(asked.prompt,), namespace=namespace)
    else:
        made = read_conversation(asked, namespace)
    work = partial(_tokenized, service, asked, made)
    return JSONResponse(await service.render(request.receive, made, work))


@router.post(
    "/detokenize",
    response_model=replies.Detokenized,
    responses=replies.problems(400, *replies.GUARDED, 408, 413, 415, 500, 503),
    tags=["Server"],
)
async def detokenize(request: Request, asked: DetokenizeRequest) -> Response:
    """The text of tokens."""
    service = _service(request)
    service.check_ready()
    return JSONResponse({"prompt": await service.in_thread(partial(_detokenized, service, asked))})


def _detokenized(service: Service, asked: DetokenizeRequest) -> str:
    largest, vocab_size = max(asked.tokens), service.engine.vocab_size
    if largest >= vocab_size:
        words = f"token {largest} is not in the vocabulary of {vocab_size}"
        raise ApiError(400, words, param="tokens", code="invalid_value")
    return str(service.engine.tokenizer.decode(asked.tokens))


@router.get(
    "/tokenizer_info",
    response_model=replies.TokenizerInfo,
    responses=replies.problems(*replies.GUARDED, 503),
    tags=["Server"],
)
async def tokenizer_info(request: Request) -> Response:
    """What a client needs to know of the tokenizer to write prompts itself."""
    service = _service(request)
    service.check_ready()
    tokenizer = service.engine.tokenizer
    info = {
        name: None if (value := getattr(tokenizer, name, None)) is None else str(value)
        for name in ("bos_token", "eos_token", "pad_token", "unk_token", "chat_template")
    }
    kind = type(getattr(tokenizer, "_tokenizer", tokenizer)).__name__
    info["tokenizer_class"] = kind
    return JSONResponse(info | {"model_max_length": service.engine.context_len})


def _tokenized(
    service: Service, asked: TokenizeRequest, made: AskedChat | AskedTexts, bounds: Bounds
) -> dict[str, Any]:
    engine, bounds = service.engine, counting(bounds)
    if isinstance(made, AskedTexts):
        prompt = text_prompt(engine.tokenizer, made.prompts[0], made.namespace, bounds)
    else:
        is_prompted = asked.add_generation_prompt is not False
        prompt = rendered_chat(
            service, made, add_generation_prompt=is_prompted, bounds=bounds
        ).prompt
    return {
        "tokens": prompt.tokens.tolist(),
        "count": len(prompt),
        "max_model_len": engine.context_len,
        "boundaries": [{"position": b.position, "kind": b.kind} for b in prompt.boundaries],
    }


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _card(service: Service) -> dict[str, Any]:
    """As OpenAI has it, and as Anthropic does: one answer is good for the clients of both."""
    context_len = service.engine.context_len if service.engine.is_ready else None
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.started_at,
        "owned_by": "keepwarm",
        "max_model_len": context_len,
        "type": "model",
        "display_name": service.model_name,
        "created_at": datetime.fromtimestamp(service.started_at, UTC).isoformat(),
        "lifecycle": "active",
        "max_input_tokens": context_len,
    }
