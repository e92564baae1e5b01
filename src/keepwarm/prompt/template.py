"""One chat template with the arguments of one request, and text as tokens with their edges.
Both ask the tokenizer and keep nothing. No mlx; any thread."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from keepwarm.errors import BadInput, RenderError
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
        # Renderers written in Python take no argument they do not know.
        given = {} if self.tools is None else {"tools": self.tools}
        try:
            return self.tokenizer.apply_chat_template(
                list(messages), **self.kwargs, **given, **asked
            )
        except Exception as error:
            # A template may fail in any way Python code can; all of them mean these messages.
            raise RenderError(f"the chat template refused: {error}") from error


class Encoded(Protocol):
    """Token ids and where in the text they begin and end."""

    ids: list[int]

    def position(self, char: int) -> int | None:
        """How many tokens lie before `char`; None where that cuts a token."""
        ...


def encode(tokenizer: Tokenizer, text: str) -> Encoded:
    """`text` as `apply_chat_template` would tokenize it: special tokens are read, none is added.
    Raises BadInput for text that is not Unicode."""
    # The wrapper forwards names, not calls; the tokenizer inside takes the call.
    callee: Any = tokenizer if callable(tokenizer) else getattr(tokenizer, "_tokenizer", None)
    check_unicode(text)
    if not callable(callee) or not getattr(callee, "is_fast", False):
        return _PrefixEncoded(tokenizer, text)
    return _OffsetEncoded(text, callee(text, add_special_tokens=False, verbose=False))


def check_unicode(text: object) -> None:
    """Raises BadInput for half of a character: JSON can carry one, and no tokenizer takes it."""
    if not isinstance(text, str):
        raise BadInput(f"text must be a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"the text holds half of a character at {error.start}") from error


def encodes_plainly(tokenizer: Tokenizer) -> bool:
    """Whether rendering with `tokenize=True` is rendering text and encoding it."""
    inner = tokenizer if callable(tokenizer) else getattr(tokenizer, "_tokenizer", tokenizer)
    applied = getattr(type(inner), "apply_chat_template", None)
    return getattr(applied, "__module__", "").startswith("transformers.")


def digest(text: str) -> bytes:
    """Stands for a text that may be long: equal digests mean equal texts."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class _OffsetEncoded:
    """Reads edges from a fast tokenizer's offsets."""

    def __init__(self, text: str, batch: Any) -> None:
        self.ids: list[int] = batch["input_ids"]
        self._text = text
        self._encoding = batch.encodings[0]
        # Lists are built when asked for: a long prompt has many tokens and few boundaries.
        self._offsets: list[tuple[int, int]] | None = None
        self._texts: list[str] | None = None

    def position(self, char: int) -> int | None:
        index = self._first_from(char)
        if index and self._offsets_read()[index - 1][1] > char:
            return None
        return None if self._hides_space(index, char) else index

    def _first_from(self, char: int) -> int:
        return bisect_left(self._offsets_read(), char, key=lambda offset: offset[0])

    def _offsets_read(self) -> list[tuple[int, int]]:
        if self._offsets is None:
            self._offsets = self._encoding.offsets
        return self._offsets

    def _hides_space(self, index: int, char: int) -> bool:
        """Whether the token at `index` holds a space from before `char`: tokenizers may trim
        the spaces a token begins with from its offsets."""
        if index == len(self.ids) or not char or not self._text[char - 1].isspace():
            return False
        if index and self._offsets_read()[index - 1][1] == char:
            return False  # the space is the previous token's
        if self._texts is None:
            self._texts = self._encoding.tokens
        begins_with_space = self._texts[index][:1] in _SPACES
        return begins_with_space and not self._text[char : char + 1].isspace()


# How byte-level and SentencePiece vocabularies write space, newline and tab.
_SPACES = frozenset("ĠĊĉ▁ \n\t")


class _PrefixEncoded:
    """Proves an edge by encoding the text on either side of it, for tokenizers without offsets."""

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        self.ids = list(tokenizer.encode(text, add_special_tokens=False))
        self._tokenizer = tokenizer
        self._text = text
        self._proven = {0: 0}  # char → position

    def position(self, char: int) -> int | None:
        if char not in self._proven:
            start = max(known for known in self._proven if known < char)
            # From the last proven edge first: the whole beginning each time would be quadratic.
            found = self._match(start, char)
            if found is None and start:
                found = self._match(0, char)
            if found is None:
                return None
            self._proven[char] = found
        return self._proven[char]

    def _match(self, start: int, char: int) -> int | None:
        piece = list(self._tokenizer.encode(self._text[start:char], add_special_tokens=False))
        begin = self._proven[start]
        end = begin + len(piece)
        return end if self.ids[begin:end] == piece else None
