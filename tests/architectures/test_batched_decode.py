"""Every architecture: sequences prefilled alone and decoded together say what each says alone."""

from __future__ import annotations

import pytest

from ..engine.engines import alone, bench
from .drive import prompt_of, random_tokens
from .zoo import ARCHITECTURES

# Those whose sequences take turns, with what mlx-lm 0.32.2 does in a batch of them.
IN_TURN = {
    "llama4": "ChunkedKVCache cannot be merged",
    "deepseek_v41": "its cache cannot be merged",
    "gemma2": "raises: the mask does not fit the grouped heads",
    "internlm3": "raises: its rope takes no array of offsets",
    "llama_dynamic_rope": "raises: its rope takes no array of offsets",
    "afm7": "wrong: the layers that share keys do not mask the padding",
    "minimax_m3_vl": "wrong: it picks blocks of keys by their place, which padding shifts",
}

PROMPTS = [prompt_of([random_tokens(48, 0), random_tokens(5 + 17 * i, 100 + i)]) for i in range(3)]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_batch_of_unequal_lengths_says_what_each_says_alone(name: str) -> None:
    made = bench(name)
    heard = [made.ask(prompt, 8 + 4 * i)[1] for i, prompt in enumerate(PROMPTS)]
    made.step_until(lambda: len(made.core.batch) == len(PROMPTS))
    assert made.core.batch.can_merge == (name not in IN_TURN)
    assert len(made.core.batch.groups) == (len(PROMPTS) if name in IN_TURN else 1)
    made.run()  # they end one after the other, so that rows leave as well
    assert [h.error for h in heard] == [None] * len(heard)
    wanted = [alone(made, prompt, 8 + 4 * i) for i, prompt in enumerate(PROMPTS)]
    assert [h.tokens for h in heard] == wanted
