"""Boundaries proven with a model: prefill cut at every one of them, stored there and restored.

The model is a small hybrid (short convolutions and attention), whose state cannot be cut: what a
turn reuses is exactly a boundary that the turn before left behind.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import pytest

from keepwarm import Placement, PrefixCache
from keepwarm.engine.prefill import Prefill
from keepwarm.prompt.boundaries import Prompt
from keepwarm.prompt.render import render_chat
from tests.architectures.zoo import ARCHITECTURES, Architecture
from tests.prompt.conversations import TOOLS, common_len, lasting
from tests.prompt.test_shared_templates import NAMES, SCENARIOS, WITH_TOOLS, Messages, render
from tests.prompt.tokenizers_for_tests import OWN_TEMPLATES, own

OWN = sorted(path.stem for path in OWN_TEMPLATES.glob("*.jinja"))
# A stop at every message: here the positions are on trial, not their number.
EVERYWHERE = Placement(min_span=1, prefill_step=4096, thinning=0.0)
MAX_VOCAB = 1200


@cache
def model() -> Any:
    lfm2 = ARCHITECTURES["lfm2"]
    config = {**lfm2.config, "vocab_size": MAX_VOCAB}
    return Architecture("lfm2", config=config).build(mx.float32)


def read(store: PrefixCache, prompt: Prompt) -> tuple[int, mx.array]:
    """How many tokens came from the cache, and the logits at the end."""
    with Prefill(model(), store, prompt) as prefill:
        for _ in prefill.steps():
            pass
        return prefill.cached_len, prefill.logits


def prove(first: Prompt, second: Prompt) -> None:
    store = PrefixCache(model(), exact=True, placement=EVERYWHERE, budget_bytes=1 << 26)
    read(store, first)
    cached, hot = read(store, second)
    _, cold = read(PrefixCache(model(), exact=True, placement=EVERYWHERE, budget_bytes=0), second)
    store.check()
    assert mx.array_equal(hot, cold)
    left = [
        b.position for b in lasting(first, common_len(first, second)) if b.position < len(first)
    ]
    assert cached == max(left, default=0)
    whole = model()(mx.array(second.tokens)[None])[:, -1, :]
    assert mx.allclose(hot, whole, atol=1e-3)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", OWN)
def test_own_templates_restore_at_the_boundary_the_last_turn_left(name: str, scenario: str) -> None:
    asked, then = SCENARIOS[scenario]
    tools = TOOLS if scenario in WITH_TOOLS else None

    def rendered(messages: Messages) -> Prompt:
        return render_chat(own(name), messages, tools=tools)

    prove(rendered(asked), rendered([*asked, *then]))


# What a template does to thoughts and tools is what moves boundaries; `make slow` runs the rest.
TELLING = ("thought echoed", "tool loop")
# Their own preambles are thousands of tokens long.
LONG = ("CohereForAI-c4ai-command-r7b", "GigaChat3.1", "unsloth-mistral-Devstral")
SHARED = [
    pytest.param(
        name,
        scenario,
        marks=() if scenario in TELLING and not name.startswith(LONG) else pytest.mark.slow,
    )
    for name in NAMES
    for scenario in SCENARIOS
]


@pytest.mark.skipif(not NAMES, reason="the shared templates are not here")
@pytest.mark.parametrize(("name", "scenario"), SHARED)
def test_shared_templates_restore_at_the_boundary_the_last_turn_left(
    name: str, scenario: str
) -> None:
    asked, then = SCENARIOS[scenario]
    prove(render(name, scenario, asked), render(name, scenario, [*asked, *then]))
