"""Puts the server together: routes, guard, errors and the OpenAPI document."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import compile_path

from keepwarm.config import Config
from keepwarm.engine.status import Phase
from keepwarm.errors import KeepwarmError
from keepwarm.server import explanation, openai, replies
from keepwarm.server.auth import Keys
from keepwarm.server.body import first_error
from keepwarm.server.errors import ApiError, as_api_error
from keepwarm.server.guard import Guard, guarded_hosts
from keepwarm.server.metrics import CONTENT_TYPE, Metrics
from keepwarm.server.protocols.messages import routes as messages
from keepwarm.server.protocols.responses import routes as responses
from keepwarm.server.protocols.responses.store import Store
from keepwarm.server.service import Service

if TYPE_CHECKING:
    from keepwarm.engine.engine import Engine

_status = APIRouter(tags=["Server"])
_MAX_PATH = 200  # letters of it that are quoted


def create_app(engine: Engine, config: Config) -> FastAPI:
    """The server as an ASGI application. The engine is the caller's to start and to stop."""
    # The pages that show the document load scripts from elsewhere; the document itself is enough.
    app = FastAPI(title="keepwarm", version=_version(), docs_url=None, redoc_url=None)
    metrics = Metrics(engine)
    app.state.config = config
    app.state.service = Service(engine, config, metrics)
    app.state.responses = Store()
    app.include_router(openai.router)
    app.include_router(messages.router)
    app.include_router(explanation.router)
    app.include_router(responses.router)
    app.include_router(_status)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_error)
    app.add_exception_handler(KeepwarmError, _on_error)
    keys = Keys(config.api_keys, shares_cache=config.shared_cache)
    hosts = guarded_hosts(config.host, config.allowed_hosts, keys)
    app.add_middleware(Guard, keys=keys, hosts=hosts, metrics=metrics)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            allow_private_network=True,  # browsers ask it of pages on the web, before this machine
        )
    app.openapi = lambda: _document(app, has_keys=bool(keys))  # type: ignore[method-assign]
    return app


@_status.get("/api/hello", include_in_schema=False)  # where Claude Code looks
@_status.get("/", response_model=replies.Root, responses=replies.problems(*replies.GUARDED))
async def root(request: Request) -> Response:
    """What answers here. Clients ask this to see whether a server is there."""
    service: Service = request.app.state.service
    return JSONResponse({"server": "keepwarm", "version": _version(), "model": service.model_name})


@_status.get("/health", response_model=replies.Health, responses={503: {"model": replies.Health}})
async def health(request: Request) -> Response:
    """Whether requests are taken: 200 when they are, 503 when not (yet, or any more)."""
    engine = request.app.state.service.engine
    phase = engine.status().phase
    is_live = engine.is_alive or phase is Phase.LOADING
    is_ready = engine.is_ready and phase is Phase.READY
    words = "ok" if is_ready else str(phase) if is_live else "failed"
    body = {"status": words, "live": is_live, "ready": is_ready}
    return JSONResponse(body, 200 if is_ready else 503)


@_status.get("/health/live", response_model=replies.Health)
async def health_live(request: Request) -> Response:
    """200 as long as the process serves."""
    is_ready = request.app.state.service.engine.is_ready
    return JSONResponse({"status": "ok", "live": True, "ready": is_ready})


@_status.get(
    "/metrics",
    response_class=Response,
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **replies.problems(*replies.GUARDED),
    },
)
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(request.app.state.service.metrics.text(), media_type=CONTENT_TYPE)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return first_error(error).answer(request.scope)


async def _on_error(request: Request, error: Exception) -> Response:
    told = as_api_error(error)
    if not isinstance(error, ApiError):
        if told.status_code == 404:
            told = ApiError(404, _no_route(request), code="unknown_route")
        elif told.status_code == 405:
            allowed = ", ".join(_methods(request))
            words = f"{request.url.path} takes {allowed} only"
            told = ApiError(405, words, headers={**(told.headers or {}), "Allow": allowed})
    return told.answer(request.scope)


def _no_route(request: Request) -> str:
    """With the route that was meant, where one looks like it."""
    path = request.url.path
    known = list(request.app.openapi()["paths"])
    near = [route for route in known if route == path.removeprefix("/v1")]
    near = near or get_close_matches(path[:_MAX_PATH], known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"here are {', '.join(known)}"
    return f"there is no {path[:_MAX_PATH]} here; {hint}"


def _methods(request: Request) -> list[str]:
    """What a path takes. Starlette tells of the first route alone where several have one path."""
    paths = request.app.openapi()["paths"]
    known = [path for path in paths if compile_path(path)[0].match(request.url.path)]
    return sorted({method.upper() for path in known for method in paths[path]})


def _document(app: FastAPI, *, has_keys: bool) -> dict[str, Any]:
    """The OpenAPI document, without the errors that FastAPI would answer with and we do not."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        schemas = document["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        if has_keys:
            document["components"]["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer"}
            }
            document["security"] = [{"key": []}]
        app.openapi_schema = document
    return app.openapi_schema


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("keepwarm")
    except PackageNotFoundError:
        return "0"  # run from a tree that was never installed
