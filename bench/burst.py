"""A burst of requests with one system prompt, cold and then again: keepwarm beside mlx-lm's server.

    python -m bench.burst [--model qwen3-0.6b|qwen3-small|qwen3_5-small|qwen3_5-9b]
                          [--requests 6] [--rounds 3] [--json]

The requests come at once: one system prompt of 2,700 tokens, and about 300 tokens of their own.
`tokens read` is what the model itself was given in prefill, padding included (mlx-lm reads up to
eight prompts in one padded batch); a token read by itself, the last of a known prompt, is not
counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any

import mlx.core as mx
import numpy as np

from bench.prefix import GENERATION_LEN
from bench.streams import Side, both, is_on_cpu, prepare, random_tokens, report
from keepwarm.bench.shapes import SHAPES
from keepwarm.prompt.boundaries import Boundary, BoundaryKind, Prompt

SYSTEM_LEN = 2_700
OWN_LEN = 300
OWN_SPREAD = 40  # own parts are up to so many tokens shorter or longer
MAX_TOKENS = 16
PAUSE_S = 1.0  # after a burst: replies are stored when their last token is out


@dataclass
class Reads:
    """Tokens the model was given in calls with more than one for each sequence."""

    num_tokens: int = 0

    def count_in(self, model: Any) -> None:
        """Count what `model` is given from now on. Mutates its class, not its weights."""
        reads, plain = self, type(model)

        class Counted(plain):  # type: ignore[misc, valid-type]
            def __call__(self, inputs: mx.array, *args: Any, **kwargs: Any) -> Any:
                if inputs.shape[1] > 1:
                    reads.num_tokens += inputs.size
                return super().__call__(inputs, *args, **kwargs)

        model.__class__ = Counted


@dataclass(frozen=True)
class Burst:
    """What one burst took."""

    num_read: int
    first_s: float  # until the first of all first tokens
    all_firsts_s: float  # until every request has its first token
    all_done_s: float


def prompts_of(num_requests: int, seed: int) -> list[Prompt]:
    rng = np.random.default_rng(seed)
    system = random_tokens(SYSTEM_LEN, rng)
    made = []
    for i in range(num_requests):
        own_len = OWN_LEN + 31 * i % (2 * OWN_SPREAD + 1) - OWN_SPREAD
        tokens = np.concatenate([system, random_tokens(own_len, rng)])
        ends = [
            Boundary(SYSTEM_LEN, BoundaryKind.SYSTEM),
            Boundary(len(tokens) - GENERATION_LEN, BoundaryKind.MESSAGE),
        ]
        made.append(Prompt(tokens.tolist(), ends))
    return made


def run(side: Side, prompts: Sequence[Prompt], reads: Reads) -> Burst:
    before = reads.num_tokens
    heard = [side.submit(prompt, MAX_TOKENS) for prompt in prompts]
    for one in heard:
        one.wait(MAX_TOKENS)
    sleep(PAUSE_S)
    start, firsts = heard[0].sent, [one.at[0] for one in heard]
    return Burst(
        num_read=reads.num_tokens - before,
        first_s=min(firsts) - start,
        all_firsts_s=max(firsts) - start,
        all_done_s=max(one.at[-1] for one in heard) - start,
    )


def figures(temperature: str, bursts: Sequence[Burst]) -> dict[str, float]:
    def median(part: str) -> float:
        return float(np.median([getattr(burst, part) for burst in bursts]))

    return {
        f"{temperature}: tokens read": round(median("num_read")),
        f"{temperature}: one first token, s": median("first_s"),
        f"{temperature}: all first tokens, s": median("all_firsts_s"),
        f"{temperature}: all done, s": median("all_done_s"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES))
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    device = prepare()
    name = options.model or ("qwen3-small" if is_on_cpu() else "qwen3-0.6b")
    sides, reads = both(name), Reads()
    reads.count_in(sides[0].model)
    # To warm up: as many as come later where kernels are made for each shape.
    for side in sides:
        run(side, prompts_of(2 if is_on_cpu() else options.requests, seed=0), reads)
    cold: dict[str, list[Burst]] = {side.name: [] for side in sides}
    warm: dict[str, list[Burst]] = {side.name: [] for side in sides}
    for seed in range(1, options.rounds + 1):
        prompts = prompts_of(options.requests, seed)
        for side in sides:
            side.forget()
            cold[side.name].append(run(side, prompts, reads))
            warm[side.name].append(run(side, prompts, reads))
    for side in sides:
        side.close()
    num_distinct = sum(len(prompt) - SYSTEM_LEN for prompt in prompts) + SYSTEM_LEN
    title = (
        f"{name} on {device}: {options.requests} requests at once,"
        f" {sum(map(len, prompts)):,} tokens, {num_distinct:,} of them distinct"
    )
    found = {s.name: figures("cold", cold[s.name]) | figures("warm", warm[s.name]) for s in sides}
    report(title, found, as_json=options.json)


if __name__ == "__main__":
    main()
