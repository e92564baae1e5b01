"""In which syntax a model calls tools. No mlx; any thread."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from keepwarm.prompt.bare_calls import calls_barely
from keepwarm.prompt.harmony import is_harmony


class CallSyntax(StrEnum):
    """Those that grammars are made for."""

    JSON = "json"  # {"name": ..., "arguments": {...}} between two tags: Qwen3, Hermes
    XML = "xml"  # <function=...> with a <parameter=...> for each argument: Qwen3.5, Qwen3-Coder
    HARMONY = "harmony"  # a channel with a recipient: gpt-oss
    BARE = "bare"  # {"name": ..., "parameters": {...}} and nothing else: Llama 3.1


_PARSERS = {
    "mlx_lm.tool_parsers.json_tools": CallSyntax.JSON,
    "mlx_lm.tool_parsers.qwen3_coder": CallSyntax.XML,
}


def call_syntax(tokenizer: Any) -> CallSyntax | None:
    """That of a tokenizer's model; None where it is none of these."""
    if is_harmony(tokenizer):
        return CallSyntax.HARMONY
    if calls_barely(tokenizer):
        return CallSyntax.BARE
    parser = getattr(tokenizer, "tool_parser", None)
    if parser is None or not getattr(tokenizer, "tool_call_end", None):
        return None
    return _PARSERS.get(getattr(parser, "__module__", ""))
