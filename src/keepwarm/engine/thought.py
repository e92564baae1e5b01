"""Ends thoughts that take too long: at its limit the model reads the tags that close its thought,
as if it had drawn them. No mlx; a `Thought` belongs to the engine thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from keepwarm.engine.request import ThoughtLimit
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.echo import Echo
from keepwarm.prompt.scan import thought_end_tokens, thought_start_tokens
from keepwarm.prompt.tags import opens_thought


def thought_limit(
    tokenizer: Any,
    prompt: Prompt,
    max_tokens: int,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> ThoughtLimit | None:
    """For replies to `prompt`; None where nothing is known of this model's thoughts. Any thread.

    A thought is closed as the template writes its end: where the template keeps thoughts, a reply
    that is sent back is then written as it was generated, and its prefix holds.
    """
    closes = thought_end_tokens(tokenizer)
    if not closes:
        return None
    lead = Echo(tokenizer, tools, template_kwargs).thought_lead()
    before = tokenizer.encode(lead, add_special_tokens=False) if lead else []
    return ThoughtLimit(
        max_tokens,
        opens=tuple(thought_start_tokens(tokenizer)),
        closes=tuple(closes),
        close=(*before, *closes),
        is_open=opens_thought(tokenizer, prompt),
    )


class Thought:
    """The thoughts of one reply, counted token by token as their values become known."""

    def __init__(self, limit: ThoughtLimit) -> None:
        self._limit = limit
        # What is forced before the closing tag belongs to the thought.
        self._free_len = max(0, limit.max_tokens - len(limit.close) + len(limit.closes))
        self._is_open = limit.is_open
        self._num_tokens = 0  # of thoughts, all of the reply's together
        self._forced: deque[int] = deque()
        self._tail: deque[int] = deque(maxlen=max(len(limit.opens), len(limit.closes)))

    @property
    def needs_last(self) -> bool:
        """Whether the value of the last token must be told before the next one is drawn: it may
        have closed the thought that is at its limit."""
        return self._is_open and self._num_tokens + 1 >= self._free_len

    @property
    def is_forced(self) -> bool:
        """Whether the next token is not drawn but `take`n."""
        return bool(self._forced) or (self._is_open and self._num_tokens >= self._free_len)

    def take(self) -> int:
        """The next token, where it is forced. Mutates."""
        if not self._forced:
            self._forced.extend(self._limit.close)
            self._is_open = False
        return self._forced.popleft()

    def accept(self, token: int) -> None:
        """The value of the token that came next. Mutates."""
        self._tail.append(token)
        if self._is_open:
            self._num_tokens += 1
            self._is_open = not self._ends_with(self._limit.closes)
        elif not self._forced and self._ends_with(self._limit.opens):
            self._is_open = True

    def _ends_with(self, tag: tuple[int, ...]) -> bool:
        return bool(tag) and tuple(self._tail)[-len(tag) :] == tag
