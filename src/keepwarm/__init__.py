"""keepwarm: a prefix cache for every kind of language model on MLX.

The public names are loaded when first asked for, so that the parts that need no arrays can be
used without mlx.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keepwarm.model import backend

if TYPE_CHECKING:
    from keepwarm.cache.placement import Placement as Placement
    from keepwarm.cache.store import PrefixCache as PrefixCache
    from keepwarm.engine.engine import Engine as Engine
    from keepwarm.engine.request import EngineSettings as EngineSettings
    from keepwarm.engine.request import Grammar as Grammar
    from keepwarm.engine.request import Request as Request
    from keepwarm.engine.request import Sampling as Sampling
    from keepwarm.model.caches import cache_maker as cache_maker
    from keepwarm.model.loader import load as load
    from keepwarm.own_loop import prefill as prefill
    from keepwarm.prompt.boundaries import Boundary as Boundary
    from keepwarm.prompt.boundaries import BoundaryKind as BoundaryKind
    from keepwarm.prompt.boundaries import Prompt as Prompt
    from keepwarm.prompt.plain import render_text as render_text
    from keepwarm.prompt.render import render_chat as render_chat
    from keepwarm.session import Session as Session

_HOMES = {
    "Boundary": "keepwarm.prompt.boundaries",
    "BoundaryKind": "keepwarm.prompt.boundaries",
    "Engine": "keepwarm.engine.engine",
    "EngineSettings": "keepwarm.engine.request",
    "Grammar": "keepwarm.engine.request",
    "Placement": "keepwarm.cache.placement",
    "PrefixCache": "keepwarm.cache.store",
    "Prompt": "keepwarm.prompt.boundaries",
    "Request": "keepwarm.engine.request",
    "Sampling": "keepwarm.engine.request",
    "Session": "keepwarm.session",
    "cache_maker": "keepwarm.model.caches",
    "load": "keepwarm.model.loader",
    "prefill": "keepwarm.own_loop",
    "render_chat": "keepwarm.prompt.render",
    "render_text": "keepwarm.prompt.plain",
}
__all__ = sorted(_HOMES)  # noqa: PLE0605

backend.prepare()  # before mlx computes anything


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'keepwarm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
