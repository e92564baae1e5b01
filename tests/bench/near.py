"""One engine in this process, asked as a scenario asks a server: no sockets, no clock, so that
many requests take seconds and every run counts the same tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import mlx.core as mx

from keepwarm import PrefixCache
from keepwarm.bench import words
from keepwarm.bench.bound import Seen
from keepwarm.bench.script import Prompter, Script
from keepwarm.bench.shapes import build
from keepwarm.bench.story import KINDS, Story
from keepwarm.engine.core import Core
from keepwarm.engine.grammar import Guides
from keepwarm.engine.memory import Footprint
from keepwarm.engine.request import EngineSettings, IdlePrefill, Request
from keepwarm.engine.room import Room
from keepwarm.events import Done, Event
from keepwarm.model.loader import prepared
from keepwarm.prompt.follow_up import as_sent_back, follow_up
from keepwarm.prompt.parse import parse_reply
from keepwarm.prompt.render import render_chat

_ROOM_BYTES = 1 << 34


class Near:
    """A model that says what a script says, its cache and its engine, stepped by hand."""

    def __init__(self, shape: str, *, exact: bool = False, budget_bytes: int = 1 << 32) -> None:
        mx.random.seed(0)
        model = build(shape)
        prepared(model)
        self.words = words.tokenizer()
        vocab_size = int(model(mx.zeros((1, 1), dtype=mx.int32)).shape[-1])
        self.prompter = Prompter(model, self.words, vocab_size)
        self.cache = PrefixCache(model, exact=exact, budget_bytes=budget_bytes)
        self._model = model
        self.restart()

    def restart(self) -> None:
        """An empty cache, and nothing learned. Mutates."""
        exact, budget_bytes = self.cache.exact, self.cache.ledger.budget_bytes
        self.cache = PrefixCache(self._model, exact=exact, budget_bytes=budget_bytes)
        caches = self.cache.fresh().caches
        mx.eval(self._model(mx.zeros((1, 4), dtype=mx.int32), cache=caches))
        room = Room(self.cache, Footprint.of(caches), _ROOM_BYTES)
        settings = EngineSettings(idle_prefill=IdlePrefill.OFF)
        guides = Guides(self.words)
        self.core = Core(self._model, self.words, self.cache, settings, guides=guides, room=room)
        self.seen = Seen()

    def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        script: Script | None = None,
        max_tokens: int = 512,
        **template_args: Any,
    ) -> Asked:
        """One request from its messages to the end of its reply, as the server handles it."""
        self.prompter.play(script or Script())
        how: dict[str, Any] = {"tools": list(tools) or None, "template_kwargs": template_args}
        prompt = render_chat(self.words, messages, **how)
        events: list[Event] = []
        sequence = self.core.submit(Request(prompt, max_tokens), events.append)
        while self.core.is_busy:
            self.core.step()
        done = events[-1]
        assert isinstance(done, Done), done
        assert done.result is not None
        reply = parse_reply(self.words, done.result.text, prompt=prompt, **how)
        said = as_sent_back(self.words, messages, reply.as_message())
        coming = follow_up(self.words, messages, said, **how)
        if coming is not None:
            self.core.warmth.follow_up(sequence, coming)
        least = self.seen.max_cached_len(prompt.tokens)
        self.seen.add(prompt.tokens, done.result.tokens)
        return Asked(len(prompt), sequence.cached_len, least, reply.as_message())


class Asked:
    """One request: its tokens, those that the cache had, and those that any could have had."""

    def __init__(
        self, num_tokens: int, cached_len: int, most: int, message: dict[str, Any]
    ) -> None:
        self.num_tokens = num_tokens
        self.cached_len = cached_len
        self.most = most
        self.message = message

    @property
    def beyond(self) -> int:
        return max(0, self.most - self.cached_len)


def play(near: Near, story: Story, num_requests: int) -> dict[str, list[Asked]]:
    """All requests of a story, by their kind, from an empty cache."""
    near.restart()
    found: dict[str, list[Asked]] = {kind: [] for kind in KINDS}
    for ask in story.asks(num_requests):
        most = 512 if story.has_own_replies else 4
        asked = near.ask(ask.messages, ask.tools, script=ask.script, max_tokens=most)
        said = dict(asked.message)
        if not ask.with_thought:
            with suppress(KeyError):
                del said["reasoning_content"]
        story.answered(ask, said)
        found[ask.kind].append(asked)
    near.cache.check()
    return found


def share_beyond(found: Mapping[str, Sequence[Asked]]) -> float:
    """Of all tokens that were asked, those read and not needed."""
    every = [asked for kind in found.values() for asked in kind]
    return sum(asked.beyond for asked in every) / sum(asked.num_tokens for asked in every)
