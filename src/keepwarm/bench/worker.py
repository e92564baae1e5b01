"""A process that reads prompts as one system does: keepwarm's prefill, or mlx-lm's own.

    python -m keepwarm.bench.worker '{"system": "mlx-lm", "shape": "qwen3_5-small"}'

A process of its own, since BLAS and kernels are chosen once, by its environment. It says in one
line of JSON what it is, then answers each line on its standard input with one: how long until the
first token. Its arrays belong to its main thread.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import make_prompt_cache

from keepwarm.bench.shapes import build
from keepwarm.cache.store import PrefixCache
from keepwarm.engine.prefill import Prefill
from keepwarm.model.head import head_of
from keepwarm.model.loader import load, prepared
from keepwarm.model.names import DTYPES, source_of
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt

_GENERATION_LEN = 8  # tokens of the generation prompt

Read = Callable[[Any, list[int]], int]  # to the first token; how many came from a cache


def main() -> None:
    answers = own_stdout()
    job = json.loads(sys.argv[1])
    make, read = _SYSTEMS[job["system"]]
    model = make(job)
    mx.eval(model.parameters())
    say(answers, portrait_of(model))
    for line in sys.stdin:
        asked = json.loads(line)
        rng = np.random.default_rng(asked["seed"])
        tokens = rng.integers(1, asked["num_ids"], asked["prompt_tokens"]).tolist()
        mx.synchronize()
        began = perf_counter()
        cached_tokens = read(model, tokens)
        say(answers, {"ttft_s": perf_counter() - began, "cached_tokens": cached_tokens})


# The systems


def _make_keepwarm(job: dict[str, Any]) -> Any:
    model = prepared(build(job["shape"])) if job.get("shape") else load(job["model"])[0]
    head_of(model)  # as an engine does while it loads
    return model


def _read_keepwarm(model: Any, tokens: list[int]) -> int:
    """Into an empty cache, checkpoints included."""
    end = Boundary(max(1, len(tokens) - _GENERATION_LEN), BoundaryKind.MESSAGE)
    with Prefill(model, PrefixCache(model), Prompt(tokens, [end])) as prefill:
        for _ in prefill.steps():
            pass
        mx.eval(mx.argmax(prefill.logits, axis=-1))
        return prefill.cached_len


def _make_mlx_lm(job: dict[str, Any]) -> Any:
    model = build(job["shape"]) if job.get("shape") else mlx_lm.load(source_of(job["model"]))[0]
    if job.get("dtype") in DTYPES:  # those of quantized weights are none of them
        model.set_dtype(getattr(mx, job["dtype"]))
    return model


def _read_mlx_lm(model: Any, tokens: list[int]) -> int:
    """Its generator, in its own chunks. With max_tokens=0 it computes the first token and ends;
    before it gives one away, it has begun the next."""
    for _ in generate_step(mx.array(tokens), model, max_tokens=0):
        pass
    return 0


_SYSTEMS: dict[str, tuple[Callable[[dict[str, Any]], Any], Read]] = {
    "keepwarm": (_make_keepwarm, _read_keepwarm),
    "mlx-lm": (_make_mlx_lm, _read_mlx_lm),
}


# What it says


def portrait_of(model: Any) -> dict[str, Any]:
    """What a model is, and what it runs on."""
    logits = model(mx.zeros((1, 2), dtype=mx.int32), cache=make_prompt_cache(model))
    flat: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    sizes: dict[str, int] = {}
    for _, array in flat:
        name = str(array.dtype).removeprefix("mlx.core.")
        sizes[name] = sizes.get(name, 0) + array.nbytes
    is_cpu = mx.default_device() == mx.cpu
    return {
        "device": "cpu" if is_cpu else "gpu",
        "device_name": mx.device_info().get("device_name", ""),
        "blas": _blas() if is_cpu else "",
        "dtype": max(sizes, key=lambda name: sizes[name]),
        "vocab_size": logits.shape[-1],
    }


def _blas() -> str:
    """What the products of a CPU are computed with, as far as that can be told."""
    if sys.platform != "linux":
        return "Accelerate"
    from keepwarm.model import blas

    try:
        file = blas.in_use(Path(mx.__file__).parent / "lib" / "libmlx.so").resolve()
        return file.name.removeprefix("lib").partition(".so")[0].partition("-")[0]
    except (blas.BlasFault, OSError):
        return "MLX's own"


def say(answers: TextIO, what: dict[str, Any]) -> None:
    """One line."""
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def own_stdout() -> TextIO:
    """The standard output for answers alone: what libraries print goes to the errors."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


if __name__ == "__main__":
    main()
