"""Requests that are under way at the same time, each read by a thread of its own. Main thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from keepwarm.bench.client import Answer, Client, Message, NoAnswer

_WAIT_S = 600.0


class Flight:
    """One chat request; its tokens can be waited for, and it can be left."""

    def __init__(self, client: Client, messages: Sequence[Message], max_tokens: int) -> None:
        self._client = client
        self._messages = messages
        self._max_tokens = max_tokens
        self._changed = threading.Condition()
        self._num_tokens = 0
        self._is_left = False
        self._answer: Answer | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def num_tokens(self) -> int:
        """Pieces that have come so far: one for each token, unless a server puts some together."""
        return self._num_tokens

    def wait(self, num_tokens: int) -> None:
        """Until so many have come. Raises NoAnswer, also when it ends before."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_tokens >= num_tokens or self._is_over, _WAIT_S)
        if self._num_tokens < num_tokens:
            raise self._error or NoAnswer(f"{self._num_tokens} of {num_tokens} tokens came")

    def leave(self) -> None:
        """With its next token; `answer` has what came until then."""
        self._is_left = True

    def answer(self) -> Answer:
        """All of it, when it has come to its end. Raises NoAnswer."""
        self._thread.join(_WAIT_S)
        if self._answer is None:
            raise self._error or NoAnswer(f"no end after {_WAIT_S:.0f} s")
        return self._answer

    @property
    def _is_over(self) -> bool:
        return self._answer is not None or self._error is not None

    def _run(self) -> None:
        answer, error = None, None
        try:
            answer = self._client.chat_until(self._hear, self._messages, self._max_tokens)
        except Exception as fault:
            error = fault
        with self._changed:
            self._answer, self._error = answer, error
            self._changed.notify_all()

    def _hear(self, answer: Answer) -> bool:
        with self._changed:
            self._num_tokens = len(answer.at)
            self._changed.notify_all()
        return self._is_left


def all_at_once(
    client: Client, conversations: Sequence[Sequence[Message]], max_tokens: int
) -> list[Answer]:
    """What came back when each of them was asked without waiting for another. Raises NoAnswer."""
    flights = [Flight(client, messages, max_tokens) for messages in conversations]
    return [flight.answer() for flight in flights]
