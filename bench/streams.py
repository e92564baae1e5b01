"""Token gaps of running streams while a long prompt is read: keepwarm beside mlx-lm's server.

    python -m bench.streams [--model qwen3-0.6b|qwen3-small|qwen3_5-small|qwen3_5-9b]
                            [--prompt 50000] [--streams 4] [--rounds 1] [--json]

N streams decode, then one long prompt comes. Both sides have the same weights (random, so that
only sizes matter) and prompts: keepwarm's Engine, and the generation thread of mlx_lm.server with
the defaults of its command line. Every token's time is taken on the thread that generates it.
"""

from __future__ import annotations

import argparse
import json
import threading
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from time import perf_counter, sleep
from typing import Any, Protocol

import mlx.core as mx
import mlx_lm.server
import numpy as np
from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, TokenizerWrapper
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from bench.prefix import GENERATION_LEN
from keepwarm.bench.shapes import SHAPES, build
from keepwarm.engine.engine import Engine
from keepwarm.engine.request import Request
from keepwarm.events import Delta, Event, Failed, Reading
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt

STREAM_PROMPT_LEN = 128
NUM_BEFORE = 32  # tokens of each stream whose gaps are taken before the long prompt comes
NUM_AFTER = 32  # tokens that are generated for the long prompt
MAX_TOKENS = 50_000  # of a stream: more than it lives to see
WAIT_S = 600.0


# What both sides are given


def is_on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.DeviceType.cpu)


def prepare() -> str:
    """Set mlx up for the device; what is to be said about it."""
    device = f"{mx.default_device()}, mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"
    if not is_on_cpu():
        return device
    mx.disable_compile()  # there mlx starts a C++ compiler for every new shape
    return f"{device}, mx.compile off on both sides"


def tokenizer(vocab_size: int) -> TokenizerWrapper:
    """A word for every id, and an end that no model can generate."""
    words = {"<unk>": 0} | {f"Ġw{i}": i for i in range(1, vocab_size)}
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<unk>")), unk_token="<unk>"
    )
    return TokenizerWrapper(made, BPEStreamingDetokenizer, eos_token_ids=[vocab_size])


def random_tokens(num_tokens: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(1, 1000, num_tokens)


def one_message(num_tokens: int, rng: np.random.Generator) -> Prompt:
    end = Boundary(num_tokens - GENERATION_LEN, BoundaryKind.MESSAGE)
    return Prompt(random_tokens(num_tokens, rng), [end])


# The sides


@dataclass
class Heard:
    """When a request was sent and when each of its tokens came. Written on the side's thread."""

    sent: float = field(default_factory=perf_counter)
    at: list[float] = field(default_factory=list)
    began: float = 0.0  # the first work on it
    error: Exception | None = None
    cancel: Callable[[], None] = lambda: None
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def hear(self) -> None:
        with self._changed:
            self.at.append(perf_counter())
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        with self._changed:
            self.error = error
            self._changed.notify_all()

    def wait(self, num_tokens: int) -> None:
        """Until so many tokens have come. Raises what the side told instead."""
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: len(self.at) >= num_tokens or self.error is not None, WAIT_S
            )
        if self.error is not None:
            raise self.error
        if not is_there:
            raise TimeoutError(f"{len(self.at)} of {num_tokens} tokens after {WAIT_S} s")


class Side(Protocol):
    """A server without its HTTP. Called on the main thread."""

    name: str

    def submit(self, prompt: Prompt, max_tokens: int) -> Heard: ...
    def forget(self) -> None: ...  # empty its cache; nothing may be running
    def close(self) -> None: ...


class Ours:
    """keepwarm's engine, on its thread, with its defaults."""

    name = "keepwarm"

    def __init__(self, model: Any, words: TokenizerWrapper) -> None:
        self.model = model
        self._engine = Engine(lambda: (model, words))
        self._engine.start()
        self._engine.wait_ready()

    def submit(self, prompt: Prompt, max_tokens: int) -> Heard:
        heard = Heard()

        def on_event(event: Event) -> None:
            if isinstance(event, Delta) and event.token is not None:
                heard.hear()
            elif isinstance(event, Reading):
                heard.began = heard.began or perf_counter()
            elif isinstance(event, Failed) and event.error is not None:
                heard.fail(event.error)

        request = Request(prompt, max_tokens, ignore_eos=True)
        heard.cancel = self._engine.submit(request, on_event).cancel
        return heard

    def forget(self) -> None:
        self._engine.call(lambda cache: cache.clear())

    def close(self) -> None:
        self._engine.stop()


class Theirs:
    """The generation thread of mlx_lm.server: BatchGenerator and LRUPromptCache, in its loop."""

    name = "mlx-lm"

    def __init__(self, model: Any, words: TokenizerWrapper) -> None:
        self._cache = LRUPromptCache(_CLI_ARGS.prompt_cache_size)
        self._generator = _Generator(_Provider(model, words), self._cache)

    def submit(self, prompt: Prompt, max_tokens: int) -> Heard:
        heard = Heard()
        request = mlx_lm.server.CompletionRequest("text", prompt, [], None, None)
        self._generator.requests.put((_Ear(heard), request, _arguments(max_tokens)))
        return heard

    def forget(self) -> None:
        self._cache.trim_to(n_sequences=0)

    def close(self) -> None:
        self._generator.stop_and_join()


# What `mlx_lm.server` takes when no flag is given.
_CLI_ARGS = Namespace(
    decode_concurrency=32, prompt_concurrency=8, prefill_step_size=2048,
    prompt_cache_size=10, prompt_cache_bytes=None, kv_bits=None,
)  # fmt: skip


class _Provider:
    """A model that is loaded already, and stays so."""

    def __init__(self, model: Any, words: TokenizerWrapper) -> None:
        self.model, self.tokenizer = model, words
        self.cli_args, self.model_key, self.is_batchable = _CLI_ARGS, "model", True

    def load(self, *_: Any) -> tuple[Any, Any]:
        return self.model, self.tokenizer

    def load_default(self) -> None: ...
    def reset(self) -> None: ...


class _Generator(mlx_lm.server.ResponseGenerator):  # type: ignore[misc]
    """Takes token ids instead of messages, cut where the server cuts a chat: the system part
    and the user's."""

    def _tokenize(self, tokenizer: Any, request: Any, args: Any) -> Any:
        prompt: Prompt = request.prompt
        tokens: list[int] = prompt.tokens.tolist()
        for boundary in prompt.boundaries:
            if boundary.kind is BoundaryKind.SYSTEM:
                parts = [tokens[: boundary.position], tokens[boundary.position :]]
                return tokens, parts, ["system", "user"], "normal", None
        return tokens, [tokens], ["user"], "normal", None

    def _run_generate(self) -> None:
        super()._run_generate()
        # mlx aborts the process at its exit when a thread that computed ended without this.
        mx.clear_streams()


class _Ear:
    """Stands where the server has a queue for each request."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def put(self, item: Any) -> None:
        if isinstance(item, mlx_lm.server.Response):
            self._heard.hear()
        elif isinstance(item, mlx_lm.server.GenerationContext):
            self._heard.began = perf_counter()
            self._heard.cancel = item.stop
        elif isinstance(item, Exception):
            self._heard.fail(item)


def _arguments(max_tokens: int) -> Any:
    """Greedy, as a request with temperature 0 is parsed."""
    return mlx_lm.server.GenerationArguments(
        model=mlx_lm.server.ModelDescription("model", None, None),
        sampling=mlx_lm.server.SamplingArguments(0.0, 1.0, 0, 0.0, 0.0, 0.0),
        logits=mlx_lm.server.LogitsProcessorArguments(None, 0.0, 20, 0.0, 20, 0.0, 20),
        stop_words=[],
        max_tokens=max_tokens,
        num_draft_tokens=0,
        logprobs=False,
        top_logprobs=-1,
        seed=None,
        chat_template_kwargs=None,
    )


# One run


@dataclass(frozen=True)
class Run:
    """The gaps in seconds, of all streams together."""

    before: list[float]
    during: list[float]
    after: list[float]
    first_token_s: float  # from when the long prompt was sent
    reading_s: float  # from the first work on it


def run(side: Side, num_streams: int, prompt_len: int, seed: int) -> Run:
    rng = np.random.default_rng(seed)
    prompts = [one_message(STREAM_PROMPT_LEN, rng) for _ in range(num_streams)]
    streams = [side.submit(prompt, MAX_TOKENS) for prompt in prompts]
    long = one_message(prompt_len, rng)
    for stream in streams:
        stream.wait(NUM_BEFORE // 2)
    settled = perf_counter()
    for stream in streams:
        stream.wait(len(stream.at) + NUM_BEFORE)
    read = side.submit(long, NUM_AFTER)
    read.wait(NUM_AFTER)
    for stream in streams:
        stream.cancel()
    settle(streams)
    first, last = read.at[0], read.at[-1]
    return Run(
        before=gaps(streams, settled, read.sent),
        during=gaps(streams, read.began, first),
        after=gaps(streams, first, last),
        first_token_s=first - read.sent,
        reading_s=first - read.began,
    )


def gaps(streams: Sequence[Heard], start: float, end: float) -> list[float]:
    """Those that a stream was in at some moment between `start` and `end`."""
    pairs = [pair for stream in streams for pair in zip(stream.at, stream.at[1:])]
    return [hi - lo for lo, hi in pairs if hi > start and lo < end]


def settle(streams: Sequence[Heard]) -> None:
    """Until no more tokens come: mlx_lm.server looks for cancelled requests twice a second."""
    counts: list[int] = []
    while counts != (counts := [len(stream.at) for stream in streams]):
        sleep(1.0)


# The report


def figures(runs: Sequence[Run]) -> dict[str, float]:
    before, during, after = (
        [gap * 1e3 for run in runs for gap in getattr(run, part)]
        for part in ("before", "during", "after")
    )
    return {
        "gap before, p50, ms": float(np.percentile(before, 50)),
        "gap during, p50, ms": float(np.percentile(during, 50)),
        "gap during, p99, ms": float(np.percentile(during, 99)),
        "gap during, max, ms": max(during),
        "gap after, p50, ms": float(np.percentile(after, 50)),
        "reading the prompt, s": float(np.median([run.reading_s for run in runs])),
        "sent to first token, s": float(np.median([run.first_token_s for run in runs])),
    }


def report(title: str, found: dict[str, dict[str, float]], *, as_json: bool) -> None:
    """A row for each figure: ours, theirs, and theirs over ours."""
    if as_json:
        print(json.dumps({"title": title, **found}))
        return
    ours, theirs = found[Ours.name], found[Theirs.name]
    print(title)
    print(f"{'':<28} {Ours.name:>10} {Theirs.name:>10} {'ratio':>7}")
    for name, value in ours.items():
        form = ",d" if isinstance(value, int) else ",.2f"
        ratio = f"{theirs[name] / value:>6.1f}x" if value else f"{'-':>7}"
        print(f"{name:<28} {value:>10{form}} {theirs[name]:>10{form}} {ratio}")


def both(name: str) -> tuple[Ours, Theirs]:
    """With the same weights."""
    model, words = build(name), tokenizer(SHAPES[name]["vocab_size"])
    return Ours(model, words), Theirs(model, words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES))
    parser.add_argument("--prompt", type=int, help="tokens of the long prompt")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device, on_cpu = prepare(), is_on_cpu()
    name = options.model or ("qwen3-small" if on_cpu else "qwen3-0.6b")
    prompt_len = options.prompt or (8_000 if on_cpu else 50_000)
    sides = both(name)
    # To warm up: the whole length where kernels are made for each shape, else some of it.
    for side in sides:
        run(side, options.streams, prompt_len // 8 if on_cpu else prompt_len, seed=0)
    runs: dict[str, list[Run]] = {side.name: [] for side in sides}
    for seed in range(1, options.rounds + 1):
        for side in sides:
            runs[side.name].append(run(side, options.streams, prompt_len, seed))
    for side in sides:
        side.close()
    title = f"{name} on {device}: {options.streams} streams, a prompt of {prompt_len:,} tokens"
    report(title, {side: figures(done) for side, done in runs.items()}, as_json=options.json)


if __name__ == "__main__":
    main()
