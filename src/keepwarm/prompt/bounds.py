"""What holds while a prompt is made: how long it may be, and whether anybody still waits for it. No
mlx; any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keepwarm.errors import Abandoned, TooLong

# Text of fewer characters a token is encoded at once; of a longer one the tokens are counted first.
_CHARS_A_TOKEN = 4
# About as much as a tokenizer reads in a twentieth of a second.
_PIECE_CHARS = 1 << 17
# Where a piece is cut, a few tokens become more of them.
_CUT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one prompt."""

    context_len: int | None = None
    is_wanted: Callable[[], bool] = lambda: True

    def check_wanted(self) -> None:
        """Between two steps of the work. Raises Abandoned."""
        if not self.is_wanted():
            raise Abandoned("nobody waits for this prompt any more")

    def check_len(self, tokenizer: Any, text: str) -> None:
        """Raises TooLong as soon as enough of `text` is encoded to know that the rest cannot fit, and
        Abandoned when nobody waits. Encoding all of it to say the same takes minutes and gigabytes."""
        limit = self.context_len
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if limit is None or len(text) <= _CHARS_A_TOKEN * limit or backend is None:
            return
        num_tokens = 0
        for start in range(0, len(text), _PIECE_CHARS):
            self.check_wanted()
            piece = text[start : start + _PIECE_CHARS]
            num_tokens += len(backend.encode(piece, add_special_tokens=False)) - _CUT_TOKENS
            if num_tokens >= limit:
                raise TooLong(
                    f"the prompt has more than {num_tokens} tokens; the model's context has {limit},"
                    " the reply included: shorten the prompt",
                    prompt_len=num_tokens,
                    context_len=limit,
                )


UNBOUND = Bounds()
