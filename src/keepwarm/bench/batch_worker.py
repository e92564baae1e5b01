"""A process that answers many prompts with one beginning, as one system does.

    python -m keepwarm.bench.batch_worker '{"system": "mlx-lm", "way": "copied", "shape": "qwen3_5-mini"}'

As `bench.worker`: it says what it is, then answers each line with how long it took.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.generate import batch_generate
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_tokenizer

from keepwarm.bench.shapes import build
from keepwarm.bench.worker import own_stdout, portrait_of, say
from keepwarm.engine.engine import Engine
from keepwarm.engine.request import Request, Sampling
from keepwarm.model.loader import load, prepared
from keepwarm.model.names import BUILT_IN, DTYPES, source_of
from keepwarm.prompt.boundaries import Prompt

_STEP = 2048
_NO_WORDS: Any = SimpleNamespace(eos_token_ids=(), decode=lambda _: "")

Prompts = list[list[int]]


def main() -> None:
    answers = own_stdout()
    job = json.loads(sys.argv[1])
    if job["system"] == "keepwarm":
        _serve_ours(job, answers)
        return
    model = _theirs(job)
    mx.eval(model.parameters())
    say(answers, portrait_of(model))
    for line in sys.stdin:
        asked = json.loads(line)
        say(answers, _timed(partial(_WAYS[job["way"]], model, asked), asked))


def prompts_of(asked: dict[str, Any]) -> Prompts:
    """Random tokens: the same for all systems."""
    rng = np.random.default_rng(asked["seed"])
    shared = rng.integers(1, asked["num_ids"], asked["shared_len"]).tolist()
    return [
        shared + rng.integers(1, asked["num_ids"], asked["own_len"]).tolist()
        for _ in range(asked["num_prompts"])
    ]


def _timed(run: Callable[[Prompts], int], asked: dict[str, Any]) -> dict[str, Any]:
    prompts = prompts_of(asked)
    began = perf_counter()
    cached_tokens = run(prompts)
    return {"seconds": perf_counter() - began, "cached_tokens": cached_tokens}


# keepwarm


def _serve_ours(job: dict[str, Any], answers: Any) -> None:
    told: list[dict[str, Any]] = []

    def loaded() -> tuple[Any, Any]:
        model = prepared(build(job["shape"])) if job.get("shape") else load(job["model"])[0]
        mx.eval(model.parameters())
        told.append(portrait_of(model))
        return model, load_tokenizer(source_of(BUILT_IN))

    with Engine(loaded) as engine:
        say(answers, told[0])
        for line in sys.stdin:
            asked = json.loads(line)
            engine.call(lambda cache: cache.clear())
            say(answers, _timed(partial(_answered, engine, asked), asked))


def _answered(engine: Engine, asked: dict[str, Any], prompts: Prompts) -> int:
    """Nothing is said of what the prompts have in common: the engine finds it."""
    requests = (
        Request(Prompt(p), asked["reply_len"], sampling=Sampling(), ignore_eos=True)
        for p in prompts
    )
    return sum(result.cached_tokens for result in engine.map(requests))


# mlx-lm


def _theirs(job: dict[str, Any]) -> Any:
    model = build(job["shape"]) if job.get("shape") else mlx_lm.load(source_of(job["model"]))[0]
    if job.get("has_our_kernels"):
        return prepared(model)
    if job.get("dtype") in DTYPES:
        model.set_dtype(getattr(mx, job["dtype"]))
    return model


def _cold(model: Any, asked: dict[str, Any], prompts: Prompts) -> int:
    batch_generate(model, _NO_WORDS, prompts, max_tokens=asked["reply_len"])
    return 0


def _copied(model: Any, asked: dict[str, Any], prompts: Prompts) -> int:
    """The common beginning is known, read once, and its caches are copied by hand."""
    shared_len: int = asked["shared_len"]
    first = make_prompt_cache(model)
    for start in range(0, shared_len, _STEP):
        chunk = prompts[0][start : min(start + _STEP, shared_len)]
        model(mx.array(chunk)[None], cache=first)
        mx.eval([cache.state for cache in first])
    rests = [prompt[shared_len:] for prompt in prompts]
    caches = [copy.deepcopy(first) for _ in prompts]
    batch_generate(model, _NO_WORDS, rests, prompt_caches=caches, max_tokens=asked["reply_len"])
    return shared_len * (len(prompts) - 1)


_WAYS = {"cold": _cold, "copied": _copied}


if __name__ == "__main__":
    main()
