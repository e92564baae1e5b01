"""Which markup a model's replies have, and the scanner that cuts them at it. No mlx; any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keepwarm.prompt import harmony
from keepwarm.prompt.bare_calls import BareScanner, calls_barely
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.tags import Markup, Scanner
from keepwarm.prompt.template import Tokenizer


def markup_of(tokenizer: Tokenizer, prompt: Prompt | None) -> Markup:
    """`prompt` is what the reply continues: it may have opened a thought already."""
    return harmony.MARKUP if harmony.is_harmony(tokenizer) else Markup.of(tokenizer, prompt)


def scanner_of(
    tokenizer: Tokenizer, prompt: Prompt | None, tools: Sequence[Mapping[str, Any]] | None
) -> Scanner:
    """For one reply that continues `prompt`, and may call `tools`."""
    markup = markup_of(tokenizer, prompt)
    if harmony.is_harmony(tokenizer):
        return harmony.HarmonyScanner(tokenizer, markup, tools)
    if calls_barely(tokenizer) and getattr(tokenizer, "can_call", True):
        return BareScanner(tokenizer, markup, tools)
    return Scanner(tokenizer, markup, tools)


def thought_end_tokens(tokenizer: Tokenizer) -> list[int]:
    """What ends a thought; empty where replies have none."""
    if harmony.is_harmony(tokenizer):
        return tokenizer.encode(harmony.END, add_special_tokens=False)
    return list(getattr(tokenizer, "think_end_tokens", None) or ())


def thought_start_tokens(tokenizer: Tokenizer) -> list[int]:
    """What opens a thought in a reply; empty where replies have none."""
    if harmony.is_harmony(tokenizer):
        return tokenizer.encode(harmony.THOUGHT, add_special_tokens=False)
    return list(getattr(tokenizer, "think_start_tokens", None) or ())
