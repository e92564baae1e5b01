"""What a user's program sees of a server: when tokens come, and what the usage says. Any thread.

One connection for each request, as most clients do on a machine of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from time import perf_counter, sleep
from typing import Any

from keepwarm.errors import KeepwarmError

_TIMEOUT_S = 600.0
# mlx-lm's server lets five connections wait, and resets what comes besides: then again, as clients
# do. The time runs on.
_MAX_RESETS = 40
_RETRY_S = 0.05

Message = Mapping[str, Any]


class NoAnswer(KeepwarmError):
    """A server refused what it was asked, or broke off."""


@dataclass(slots=True)
class Answer:
    """One reply, as it came."""

    sent: float
    at: list[float] = field(default_factory=list)  # when something of the reply came
    content: str = ""
    thought: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    reply_tokens: int = 0
    num_resets: int = 0  # connections that the server did not take
    timings_ms: dict[str, float] = field(default_factory=dict)  # where the server tells them
    ended: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.at[0] - self.sent

    @property
    def total_s(self) -> float:
        return self.ended - self.sent

    def message(self, *, with_thought: bool = False) -> dict[str, Any]:
        """As a client adds it to its history."""
        said: dict[str, Any] = {"role": "assistant", "content": self.content}
        if with_thought:
            said["reasoning_content"] = self.thought
        if self.calls:
            said["tool_calls"] = self.calls
        return said


IsEnough = Callable[[Answer], bool]  # asked whenever something came


def _never(_: Answer) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Client:
    """Talks to one server."""

    port: int

    def chat(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> Answer:
        """Raises NoAnswer."""
        body = {"messages": list(messages), "max_tokens": max_tokens, **options}
        return self._ask("/v1/chat/completions", body | ({"tools": list(tools)} if tools else {}))

    def chat_until(
        self, is_enough: IsEnough, messages: Sequence[Message], max_tokens: int
    ) -> Answer:
        """Leaves when it is enough: no usage comes then. Raises NoAnswer."""
        body = {"messages": list(messages), "max_tokens": max_tokens}
        return self._ask("/v1/chat/completions", body, is_enough)

    def complete(self, prompt: str, *, max_tokens: int, **options: Any) -> Answer:
        """Raises NoAnswer."""
        body = {"prompt": prompt, "max_tokens": max_tokens, **options}
        return self._ask("/v1/completions", body)

    def _ask(self, path: str, body: dict[str, Any], is_enough: IsEnough = _never) -> Answer:
        asked = {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        written = json.dumps(asked | body)  # which is the client's own time
        answer = Answer(perf_counter())
        try:
            with closing(self._connected(path, written, answer)) as response:
                if response.status != 200:
                    words = response.read().decode(errors="replace")
                    raise NoAnswer(f"{path}: {response.status} {words[:500]}")
                for event in _events(response):
                    _add(answer, event)
                    if is_enough(answer):
                        break
        except OSError as error:
            raise NoAnswer(f"{path}: {error!r}") from error
        answer.ended = perf_counter()
        if not answer.at:
            raise NoAnswer(f"{path}: the reply is empty")
        return answer

    def _connected(self, path: str, body: str, answer: Answer) -> HTTPResponse:
        """The beginning of a response; it has the connection for itself. Mutates the answer."""
        headers = {"Content-Type": "application/json", "Connection": "close"}
        while True:
            connection = HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
            try:
                connection.request("POST", path, body, headers)
                return connection.getresponse()
            except ConnectionResetError:
                connection.close()
                answer.num_resets += 1
                if answer.num_resets == _MAX_RESETS:
                    raise
                sleep(_RETRY_S)


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of a stream; comments that keep it alive are none."""
    for line in response:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            yield json.loads(line[6:])


def _add(answer: Answer, event: dict[str, Any]) -> None:
    """Mutates."""
    if "error" in event:
        raise NoAnswer(str(event["error"]))
    if usage := event.get("usage"):
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.reply_tokens = usage["completion_tokens"]
        answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    if report := event.get("keepwarm"):
        answer.timings_ms = report["timings_ms"]
    for choice in event["choices"]:
        delta = choice.get("delta") or choice
        content = delta.get("content") or delta.get("text") or ""
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        calls = delta.get("tool_calls") or []
        answer.content += content
        answer.thought += thought
        answer.calls += [_call(call) for call in calls if call["function"].get("name")]
        if content or thought or calls:
            answer.at.append(perf_counter())


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """A tool call without what belongs to the stream only."""
    return {key: call[key] for key in ("id", "type", "function") if key in call}
