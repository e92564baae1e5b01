"""A generated reply to the message a client sends back: reasoning, content and tool calls, cut so
that the template writes the same text again where it can. No mlx; any thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.echo import Echo, trimmed
from keepwarm.prompt.reply import Reply, ToolCall
from keepwarm.prompt.scan import scanner_of
from keepwarm.prompt.tags import opens_thought
from keepwarm.prompt.template import Tokenizer
from keepwarm.prompt.trim import FORMS

__all__ = ["Reply", "ToolCall", "opens_thought", "parse_reply"]


def parse_reply(
    tokenizer: Tokenizer,
    text: str,
    *,
    prompt: Prompt | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    finish_reason: str = "stop",
) -> Reply:
    """Splits `text`, the whole reply without its end token, by the tags mlx-lm knows of
    `tokenizer`. `prompt` is what it continues: it may have opened a thought already. What was
    meant as a tool call but cannot be read stays in the content, unless the limit ("length", as
    `finish_reason`) cut it off.

    Line breaks around the parts are kept or left to the template, whichever makes it write `text`
    again; where nothing does, as for most replies of this template."""
    scanner = scanner_of(tokenizer, prompt, tools)
    pieces = [*scanner.push(text), *scanner.end(finish_reason)]
    ways = [trimmed(form, scanner, pieces) for form in FORMS]
    if len(set(ways)) == 1:
        return ways[0]
    echo = Echo(tokenizer, tools, template_kwargs)
    return echo.pick(text, [trimmed(echo.usual_form(scanner), scanner, pieces), *ways])
