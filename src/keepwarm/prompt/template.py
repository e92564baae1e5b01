"""One chat template with the arguments of one request. Asks the tokenizer and keeps nothing.
No mlx; any thread."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from keepwarm.errors import RenderError
from keepwarm.prompt.bounds import UNBOUND, Bounds
from keepwarm.prompt.messages import Message


class Tokenizer(Protocol):
    """mlx-lm's TokenizerWrapper or any Hugging Face tokenizer."""

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...
    def encode(self, text: str, **kwargs: Any) -> list[int]: ...


@dataclass(frozen=True)
class Template:
    """Renders conversations with the same tools and template arguments."""

    tokenizer: Tokenizer
    tools: list[dict[str, Any]] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    bounds: Bounds = UNBOUND

    def text(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Raises RenderError with the template's own words where it refuses."""
        rendered = self._apply(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        if not isinstance(rendered, str):
            raise RenderError(f"the chat template gave {type(rendered).__name__}, not text")
        return rendered

    def try_text(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str | None:
        """None where the template refuses."""
        try:
            return self.text(messages, add_generation_prompt=add_generation_prompt)
        except RenderError:
            return None

    def tokens(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> list[int]:
        """The tokenizer's own answer, for tokenizers that do not simply encode the text."""
        asked = {"tokenize": True, "add_generation_prompt": add_generation_prompt}
        return list(self._apply(messages, **asked, return_dict=False))

    def key(self) -> bytes:
        """What must be equal for two renderings of one tokenizer to follow the same rules."""
        # mlx-lm's wrapper may hold a renderer of its own in place of the tokenizer's template.
        renderer = getattr(self.tokenizer, "_chat_template", None)
        template = getattr(self.tokenizer, "chat_template", None)
        return digest(repr((template, renderer, self.kwargs)))

    def _apply(self, messages: Sequence[Message], **asked: Any) -> Any:
        self.bounds.check_wanted()
        # Renderers written in Python take no argument they do not know.
        given = {} if self.tools is None else {"tools": self.tools}
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), **self.kwargs, **given, **asked
            )
        except Exception as error:
            # A template may fail in any way Python code can; all of them mean these messages.
            raise RenderError(f"the chat template refused these messages: {error}") from error


def trouble_with(tokenizer: Tokenizer) -> str | None:
    """Why no conversation can be rendered; None where the shortest one can be."""
    if not getattr(tokenizer, "has_chat_template", True):
        return "the model has no chat template"
    try:
        Template(tokenizer).text([{"role": "user", "content": "Hello"}], add_generation_prompt=True)
    except RenderError as error:
        return str(error)
    return None


def encodes_plainly(tokenizer: Tokenizer) -> bool:
    """Whether rendering with `tokenize=True` is rendering text and encoding it."""
    inner = tokenizer if callable(tokenizer) else getattr(tokenizer, "_tokenizer", tokenizer)
    applied = getattr(type(inner), "apply_chat_template", None)
    return getattr(applied, "__module__", "").startswith("transformers.")


def digest(text: str) -> bytes:
    """Stands for a text that may be long: equal digests mean equal texts."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
