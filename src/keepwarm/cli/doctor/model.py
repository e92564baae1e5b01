"""A loaded model: how its layers can be restored, what they weigh, and what its template does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from keepwarm.cli.amounts import amount, tokens
from keepwarm.cli.doctor.findings import Level, Section
from keepwarm.engine.fit import Fit
from keepwarm.engine.limits import context_len_of
from keepwarm.engine.memory import Footprint
from keepwarm.errors import BadInput, CacheFault
from keepwarm.machine import free_bytes
from keepwarm.model.caches import cache_maker
from keepwarm.prompt.boundaries import BoundaryKind
from keepwarm.prompt.hygiene import Trials
from keepwarm.prompt.render import render_chat
from keepwarm.prompt.template import Template, trouble_with
from keepwarm.state.base import Kind
from keepwarm.state.registry import Layout

_THOUGHT = "Hidden plum thoughts."
_TOOL = {
    "type": "function",
    "function": {
        "name": "find_plum",
        "description": "Finds a plum.",
        "parameters": {"type": "object", "properties": {"color": {"type": "string"}}},
    },
}
_TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a gardener."},
    {"role": "user", "content": "Which tree is this?"},
    {"role": "assistant", "content": "A plum tree.", "reasoning_content": _THOUGHT},
    {"role": "user", "content": "When does it bloom?"},
]
# What clients send, and what it is called.
_ROLES = {
    "a system message": ("system", "user"),
    "a developer message": ("developer", "user"),
    "two system messages": ("system", "system", "user"),
    "a system message after the first question": ("user", "assistant", "system", "user"),
}
_ON_SNAPSHOTS = (
    "a prompt is picked up only at checkpoints: the ends of the system part and of messages, and"
    " places in long texts"
)
_MEANING = {
    Kind.ROWS: "any stored prompt is picked up at the very token where the new one parts",
    Kind.WINDOW: (
        "a prompt is picked up at a checkpoint, or where the last rows of each window are still held"
    ),
    Kind.SNAPSHOT: _ON_SNAPSHOTS,
}


def model_section(name: str, model: Any) -> Section:
    section = Section("model", f"Model {name}")
    caches = cache_maker(model)()
    mx.eval(model(mx.zeros((1, 4), dtype=mx.int32), cache=caches), [c.state for c in caches])
    flat: list[tuple[str, Any]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    weights = sum(array.nbytes for _, array in flat)
    section.add("weights", f"{amount(weights)} in memory", weights_bytes=weights)
    try:
        layout = Layout.of(caches)
    except CacheFault as fault:
        section.add("layers", f"cannot be cached: {fault}", Level.PROBLEM)
        return section
    kinds = [state.kind for state in layout.states]
    section.add("layers", f"{layout.summary()} ({_pattern(kinds)})", kinds=kinds)
    worst = max(set(kinds), key=[Kind.ROWS, Kind.WINDOW, Kind.SNAPSHOT].index)
    section.add("reuse", _MEANING[worst], restores_anywhere=layout.can_cut)
    _add_bytes(section, Footprint.of(caches))
    _add_context(section, Fit(Footprint.of(caches), context_len_of(model), layout.summary()))
    return section


def template_section(tokenizer: Any, template_kwargs: dict[str, Any]) -> Section:
    section = Section("template", "Chat template")
    trouble = trouble_with(tokenizer)
    if trouble is not None:
        section.add("chats", f"refused: {trouble}; --chat-template FILE gives one", Level.ADVICE)
        return section
    _add_boundaries(section, tokenizer, template_kwargs)
    _add_thinking(section, Template(tokenizer, kwargs=template_kwargs))
    _add_tools(section, Template(tokenizer, tools=[_TOOL], kwargs=template_kwargs))
    _add_roles(section, Trials(tokenizer, None, template_kwargs))
    return section


def _pattern(kinds: Sequence[Kind]) -> str:
    """Their order in few words: what repeats is told once."""
    for period in range(1, len(kinds) // 2 + 1):
        if all(kind == kinds[i % period] for i, kind in enumerate(kinds)):
            return "all alike" if period == 1 else f"in turn {_runs(kinds[:period])}"
    runs = _runs(kinds)
    return runs if len(runs) < 100 else "in no regular order"


def _runs(kinds: Sequence[Kind]) -> str:
    runs: list[tuple[Kind, int]] = []
    for kind in kinds:
        last, count = runs[-1] if runs else (None, 0)
        if kind == last:
            runs[-1] = (kind, count + 1)
        else:
            runs.append((kind, 1))
    return ", ".join(f"{count} {kind}" for kind, count in runs)


def _add_bytes(section: Section, footprint: Footprint) -> None:
    windows = [growth for growth in footprint.growths if growth.max_tokens is not None]
    window_bytes = sum(growth.token_bytes * (growth.max_tokens or 0) for growth in windows)
    parts = []
    if footprint.token_bytes:
        parts.append(f"{amount(footprint.token_bytes)} a token")
    if windows:
        parts.append(f"{amount(window_bytes)} for the full windows")
    if footprint.fixed_bytes:
        snapshot = f"{amount(footprint.fixed_bytes)} a snapshot"
        if footprint.token_bytes:
            as_tokens = footprint.fixed_bytes // footprint.token_bytes
            snapshot += f" (as much as {as_tokens} tokens)"
        parts.append(snapshot)
    section.add(
        "state",
        ", ".join(parts),
        token_bytes=footprint.token_bytes,
        window_bytes=window_bytes,
        snapshot_bytes=footprint.fixed_bytes,
    )


def _add_context(section: Section, fit: Fit) -> None:
    longest = fit.longest(0, free_bytes())  # the weights are in memory already
    whole = "not said" if fit.context_len is None else tokens(fit.context_len)
    words = f"{tokens(longest)} tokens fit beside the cache; the model's own limit: {whole}"
    is_short = longest < (fit.context_len or 0)
    level = Level.ADVICE if is_short and longest < 8192 else Level.OK
    section.add("context", words, level, fits_len=longest, context_len=fit.context_len)


def _add_boundaries(section: Section, tokenizer: Any, kwargs: dict[str, Any]) -> None:
    talk = [message for message in _TALK if _writes(tokenizer, kwargs, message)]
    try:
        prompt = render_chat(tokenizer, talk, template_kwargs=kwargs, is_made_up=True)
    except BadInput as error:
        section.add("boundaries", f"none: {error}", Level.ADVICE, proven=[], messages=len(talk))
        return
    kinds = [boundary.kind for boundary in prompt.boundaries]
    ends = sum(kind in (BoundaryKind.MESSAGE, BoundaryKind.USER) for kind in kinds)
    has_system = BoundaryKind.SYSTEM in kinds
    wanted = sum(message["role"] != "system" for message in talk)
    is_whole = ends >= wanted and (has_system or talk[0]["role"] != "system")
    words = "proven after " + " and ".join(
        [*(["the system part"] if has_system else []), f"{ends} of {wanted} messages"]
    )
    if not is_whole:
        words += "; where none is proven, a prompt is not picked up exactly at the end of a message"
    level = Level.OK if is_whole else Level.ADVICE
    section.add("boundaries", words, level, proven=kinds, messages=len(talk))


def _writes(tokenizer: Any, kwargs: dict[str, Any], message: dict[str, Any]) -> bool:
    """System messages are left out where the template refuses them."""
    return message["role"] != "system" or Trials(tokenizer, None, kwargs).writes("system", "user")


def _add_thinking(section: Section, template: Template) -> None:
    talk = _TALK[1:]
    past = template.try_text(talk, add_generation_prompt=True)
    if past is None:
        return
    last = template.try_text(talk[:2], add_generation_prompt=False) or ""
    is_kept, is_known = _THOUGHT in past, _THOUGHT in past + last
    if is_kept:
        words = "past thoughts stay in the history, if the client sends them back"
    elif is_known:
        words = (
            "past thoughts are taken out of the history, so the last answer is read again in the"
            " next turn; keepwarm reads it ahead while nobody waits"
        )
    else:
        words = "thoughts are not written into the history"
    section.add("thinking", words, keeps_past=is_kept, writes_last=is_known)


def _add_tools(section: Section, template: Template) -> None:
    text = template.try_text(_TALK[1:2], add_generation_prompt=True)
    if text is None:
        section.add("tools", "refused by the template", Level.ADVICE, writes=False)
    elif "find_plum" not in text:
        words = "ignored by the template: the model is not told of them"
        section.add("tools", words, Level.ADVICE, writes=False)
    else:
        takes_results = Trials(template.tokenizer, [_TOOL], template.kwargs).writes(
            "user", "assistant", "tool"
        )
        words = "written by the template" + (
            ", and so are calls and results" if takes_results else ", but no results of their calls"
        )
        level = Level.OK if takes_results else Level.ADVICE
        section.add("tools", words, level, writes=True, writes_results=takes_results)


def _add_roles(section: Section, trials: Trials) -> None:
    taken = {name: trials.writes(*roles) for name, roles in _ROLES.items()}
    refused = [name for name, is_taken in taken.items() if not is_taken]
    words = "all orders of roles that clients send are taken"
    if refused:
        words = f"the template refuses or drops {', '.join(refused)}; keepwarm rewrites these"
    section.add("roles", words, refused=refused)
