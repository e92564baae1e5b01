"""The engine, stepped by hand on small real models."""

from __future__ import annotations

import pytest

from tests.architectures.drive import prompt_of, random_tokens

from .engines import alone, bench

SYSTEM = random_tokens(48, 0)
KINDS = ["llama", "gpt_oss", "qwen3_5", "mamba2", "llama4"]


def question(seed: int, count: int = 20) -> list[int]:
    return random_tokens(count, 100 + seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exact", [False, True], ids=["default", "exact"])
def test_sequences_of_unequal_lengths_say_together_what_each_says_alone(
    kind: str, exact: bool
) -> None:
    made = bench(kind, exact=exact)
    prompts = [prompt_of([SYSTEM, question(i, 10 + 13 * i)]) for i in range(4)]
    heard = [made.ask(prompt, 12)[1] for prompt in prompts]
    made.run()
    assert [h.tokens for h in heard] == [alone(made, p, 12, exact=exact) for p in prompts]
