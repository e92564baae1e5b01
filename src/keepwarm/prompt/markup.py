"""What can be seen of a template's markup in the texts it renders: what they share, which tokens
close something, where thoughts begin. Asks the tokenizer, keeps nothing; any thread."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from keepwarm.prompt.encode import encode
from keepwarm.prompt.template import Tokenizer

# Words for messages made up to be rendered; nobody else writes them, and they differ from the
# first letter on.
ALPHA = "Avocet4711"
QUEBEC = "Quokka4712"
_MADE_UP = re.compile(f"{ALPHA}|{QUEBEC}", re.IGNORECASE)

# How many letters around a place decide where tokens begin and end there.
_NEAR = 128

# Tags that open or close a thought in the generation prompts of today's models.
_THINKING = re.compile(
    r"<[^<>\s]*(?:think|thought|reason|inner_prefix)[^<>\s]*>|\[/?THINK\]|<\|channel>|<\|open\|>think",
    re.IGNORECASE,
)

# Names of added tokens that close something: <|im_end|>, [/INST], <|eot|>, <eos>.
_CLOSES = re.compile(r"^.?/|end|close|stop|eo[stm]\b|eot_id|eom_id", re.IGNORECASE)


def common_prefix(texts: Iterable[str]) -> str:
    """The longest text that all of `texts` begin with."""
    texts = list(texts)
    low, high = min(texts), max(texts)
    # Halving compares whole slices, which is faster than letter by letter for long prompts.
    shared, limit = 0, min(len(low), len(high))
    while shared < limit:
        middle = (shared + limit + 1) // 2
        if low[shared:middle] == high[shared:middle]:
            shared = middle
        else:
            limit = middle - 1
    return low[:shared]


def before_made_up(text: str) -> str:
    """`text` up to the first made-up message's own words."""
    found = _MADE_UP.search(text)
    return text[: found.start()] if found else text


def thinking_starts(text: str) -> int:
    """Where the first tag of a thought stands in `text`; its end where there is none."""
    found = _THINKING.search(text)
    return found.start() if found else len(text)


def closers(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Added tokens in a row that close something, with the white space around them."""
    tokens = [re.escape(token) for token in added_tokens(tokenizer) if _CLOSES.search(token)]
    return re.compile(f"\\s*(?:(?:{'|'.join(tokens)})\\s*)+") if tokens else re.compile("(?!)")


def added_tokens(tokenizer: Tokenizer) -> list[str]:
    """Longest first, so that a token is read before one it contains."""
    added: Any = getattr(tokenizer, "get_added_vocab", dict)()
    return sorted(added, key=len, reverse=True)


def settled(tokenizer: Tokenizer, text: str, tails: Iterable[str]) -> str:
    """`text` shortened to where every tail that begins with it has the edge of a token."""
    # Tokens depend on what is near; the boundary is proven in the whole rendering later on.
    start, end = max(0, len(text) - _NEAR), len(text) + _NEAR
    # A letter in front stands for the message the tail belongs to.
    encoded = [encode(tokenizer, "x" + t[start:end]) for t in tails if t.startswith(text)]
    for length in range(len(text), start - 1, -1):
        if all(tokens.position(1 + length - start) is not None for tokens in encoded):
            return text[:length]
    return ""
