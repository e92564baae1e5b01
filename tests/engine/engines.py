"""Engines on small real models, stepped by hand, and what a sequence gives when it runs alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from time import sleep
from typing import Any

import mlx.core as mx
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import PreTrainedTokenizerFast

from keepwarm import Placement, PrefixCache, cache_maker
from keepwarm.cache.disk.settings import Disk
from keepwarm.engine.core import Core
from keepwarm.engine.decode import decode
from keepwarm.engine.grammar import Guides
from keepwarm.engine.memory import Footprint
from keepwarm.engine.pace import Pace
from keepwarm.engine.prefill import Prefill
from keepwarm.engine.request import EngineSettings, Request, Sampling
from keepwarm.engine.room import Room
from keepwarm.engine.sampling import Draw
from keepwarm.engine.sequence import Sequence as Running
from keepwarm.events import Delta, Done, Event, Failed, Reading, Result
from tests.architectures.zoo import ARCHITECTURES
from tests.compat.serving import TEMPLATE, word_tokenizer

# A checkpoint at every message, so that short conversations show what long ones do.
PLACEMENT = Placement(min_span=16, prefill_step=40)


@cache
def model_of(architecture: str) -> Any:
    return ARCHITECTURES[architecture].build(mx.float32)


def tokenizer() -> TokenizerWrapper:
    made = PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(), unk_token="<unk>", eos_token="<eos>"
    )
    made.chat_template = TEMPLATE
    return TokenizerWrapper(made)


class Steady(Pace):
    """Always the same length."""

    def observe(self, num_tokens: int, seconds: float) -> None: ...


@dataclass
class Heard:
    """What a request was told."""

    events: list[Event] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [e.token for e in self.events if isinstance(e, Delta) and e.token is not None]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events)

    @property
    def readings(self) -> list[int]:
        return [e.position for e in self.events if isinstance(e, Reading)]

    @property
    def is_over(self) -> bool:
        return any(isinstance(e, Done | Failed) for e in self.events)

    @property
    def result(self) -> Result:
        last = self.events[-1]
        assert isinstance(last, Done), last
        assert last.result is not None
        return last.result

    @property
    def error(self) -> Exception | None:
        last = self.events[-1]
        return last.error if isinstance(last, Failed) else None


@dataclass
class Bench:
    """A core that is stepped by hand."""

    core: Core
    model: Any

    @property
    def cache(self) -> PrefixCache:
        return self.core.cache

    def ask(self, prompt: Any, max_tokens: int = 8, **settings: Any) -> tuple[Running, Heard]:
        heard = Heard()
        settings.setdefault("ignore_eos", True)
        request = Request(prompt, max_tokens, **settings)
        return self.core.submit(request, heard.events.append), heard

    def run(self, max_steps: int = 10_000) -> None:
        """Until no request is left; idle work is left alone."""
        for _ in range(max_steps):
            if not self.core.is_busy:
                break
            if not self.core.step():
                sleep(1e-3)  # it waits for the disk
        assert not self.core.is_busy
        self.cache.check()

    def run_idle(self) -> None:
        while self.core.step():
            pass
        self.cache.check()

    def step_until(self, is_so: Callable[[], bool], max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if is_so():
                return
            self.core.step()
        raise AssertionError("it never came to that")


def bench(
    architecture: str = "qwen3_5",
    *,
    exact: bool = False,
    budget_bytes: int = 1 << 26,
    memory_bytes: int = 1 << 30,
    weights_bytes: int = 1 << 24,
    kv_bits: int | None = None,
    placement: Placement = PLACEMENT,
    disk: Disk | None = None,
    **settings: Any,
) -> Bench:
    settings.setdefault("max_stall_s", 1e-9)  # one chunk in each step
    model = model_of(architecture)
    make = cache_maker(model, kv_bits, 32)
    cache = PrefixCache(
        make, exact=exact, budget_bytes=budget_bytes, placement=placement, disk=disk
    )
    caches = cache.fresh().caches
    mx.eval(model(mx.zeros((1, 4), dtype=mx.int32), cache=caches))
    room = Room(cache, Footprint.of(caches), memory_bytes, weights_bytes)
    words = tokenizer()
    core = Core(model, words, cache, EngineSettings(**settings), guides=Guides(words), room=room)
    # Chunks are not cut by how long they take: some models compute otherwise when they are.
    core._pace = Steady(1e6, placement.prefill_step)
    return Bench(core, model)


def alone(
    bench: Bench, prompt: Any, max_tokens: int = 8, sampling: Any = None, exact: bool = False
) -> list[int]:
    """The tokens of a run with nothing in the cache and nobody beside it."""
    made = bench.cache._make_caches
    cold = PrefixCache(made, exact=exact, budget_bytes=0, placement=bench.cache.placement)
    request = Request(prompt, max_tokens, **({"sampling": sampling} if sampling else {}))
    with Prefill(bench.model, cold, prompt) as prefill:
        list(prefill.steps())
        draw = Draw(request.sampling or Sampling(), prompt=prompt.tokens)
        tokens = decode(bench.model, prefill.live, prefill.logits, draw)
        return [token.value for _, token in zip(range(max_tokens), tokens)]
