"""keepwarm: a prefix cache for every kind of language model on MLX.

The public names are loaded when first asked for, so that the parts that need no arrays can be
used without mlx.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from keepwarm.model import backend

if TYPE_CHECKING:
    from keepwarm.cache.disk.settings import Disk as Disk
    from keepwarm.cache.explain import Match as Match
    from keepwarm.cache.explain import Reason as Reason
    from keepwarm.cache.live import Live as Live
    from keepwarm.cache.placement import Placement as Placement
    from keepwarm.cache.stats import Stats as Stats
    from keepwarm.cache.store import PrefixCache as PrefixCache
    from keepwarm.engine.engine import Engine as Engine
    from keepwarm.engine.engine import Ticket as Ticket
    from keepwarm.engine.request import EngineSettings as EngineSettings
    from keepwarm.engine.request import Grammar as Grammar
    from keepwarm.engine.request import Request as Request
    from keepwarm.engine.request import Sampling as Sampling
    from keepwarm.errors import BadInput as BadInput
    from keepwarm.errors import KeepwarmError as KeepwarmError
    from keepwarm.errors import Overloaded as Overloaded
    from keepwarm.errors import RenderError as RenderError
    from keepwarm.errors import TooLarge as TooLarge
    from keepwarm.errors import TooLong as TooLong
    from keepwarm.errors import Unavailable as Unavailable
    from keepwarm.events import ChatResult as ChatResult
    from keepwarm.events import Delta as Delta
    from keepwarm.events import Done as Done
    from keepwarm.events import Event as Event
    from keepwarm.events import Failed as Failed
    from keepwarm.events import Reading as Reading
    from keepwarm.events import Result as Result
    from keepwarm.events import Score as Score
    from keepwarm.events import Stream as Stream
    from keepwarm.events import Timings as Timings
    from keepwarm.events import TokenScore as TokenScore
    from keepwarm.model.caches import cache_maker as cache_maker
    from keepwarm.model.loader import load as load
    from keepwarm.own_loop import prefill as prefill
    from keepwarm.prompt.boundaries import Boundary as Boundary
    from keepwarm.prompt.boundaries import BoundaryKind as BoundaryKind
    from keepwarm.prompt.boundaries import Prompt as Prompt
    from keepwarm.prompt.kinds import Kind as Kind
    from keepwarm.prompt.plain import render_text as render_text
    from keepwarm.prompt.render import render_chat as render_chat
    from keepwarm.prompt.reply import Reply as Reply
    from keepwarm.prompt.reply import ToolCall as ToolCall
    from keepwarm.session import Session as Session

    __version__: str

_HOMES = {
    "BadInput": "keepwarm.errors",
    "Boundary": "keepwarm.prompt.boundaries",
    "BoundaryKind": "keepwarm.prompt.boundaries",
    "ChatResult": "keepwarm.events",
    "Delta": "keepwarm.events",
    "Disk": "keepwarm.cache.disk.settings",
    "Done": "keepwarm.events",
    "Engine": "keepwarm.engine.engine",
    "EngineSettings": "keepwarm.engine.request",
    "Event": "keepwarm.events",
    "Failed": "keepwarm.events",
    "Grammar": "keepwarm.engine.request",
    "KeepwarmError": "keepwarm.errors",
    "Kind": "keepwarm.prompt.kinds",
    "Live": "keepwarm.cache.live",
    "Match": "keepwarm.cache.explain",
    "Overloaded": "keepwarm.errors",
    "Placement": "keepwarm.cache.placement",
    "PrefixCache": "keepwarm.cache.store",
    "Prompt": "keepwarm.prompt.boundaries",
    "Reading": "keepwarm.events",
    "Reason": "keepwarm.cache.explain",
    "RenderError": "keepwarm.errors",
    "Reply": "keepwarm.prompt.reply",
    "Request": "keepwarm.engine.request",
    "Result": "keepwarm.events",
    "Sampling": "keepwarm.engine.request",
    "Score": "keepwarm.events",
    "Session": "keepwarm.session",
    "Stats": "keepwarm.cache.stats",
    "Stream": "keepwarm.events",
    "Ticket": "keepwarm.engine.engine",
    "Timings": "keepwarm.events",
    "TokenScore": "keepwarm.events",
    "TooLarge": "keepwarm.errors",
    "TooLong": "keepwarm.errors",
    "ToolCall": "keepwarm.prompt.reply",
    "Unavailable": "keepwarm.errors",
    "cache_maker": "keepwarm.model.caches",
    "load": "keepwarm.model.loader",
    "prefill": "keepwarm.own_loop",
    "render_chat": "keepwarm.prompt.render",
    "render_text": "keepwarm.prompt.plain",
}
__all__ = sorted([*_HOMES, "__version__"])  # noqa: PLE0605

backend.prepare()  # before mlx computes anything


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("keepwarm")
    if name not in _HOMES:
        raise AttributeError(f"module 'keepwarm' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
