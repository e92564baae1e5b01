"""Experts called for all their tokens beside mlx-lm's call per token."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import dbrx

from keepwarm.model.grouped_experts import call_experts, dbrx_moe

from .released import assert_close, released

loop = released(dbrx, "SparseMoeBlock.__call__")


@pytest.fixture(scope="module")
def block() -> Any:
    mx.random.seed(0)
    experts = {"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 2}
    args = dbrx.ModelArgs("dbrx", 128, 16, experts, {}, 1, 4)
    return dbrx.SparseMoeBlock(args).eval()


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (1, 40), (3, 7)])
def test_gives_what_the_loop_gives(block: Any, shape: tuple[int, int]) -> None:
    x = mx.random.normal((*shape, 16), key=mx.random.key(1))
    assert_close([dbrx_moe(block, x)], [loop(block, x)])


def test_every_token_meets_the_experts_chosen_for_it() -> None:
    experts = [lambda x, i=i: x * 10**i for i in range(4)]
    chosen = np.array([[3, 0], [0, 1], [3, 1]])  # nobody chose 2
    outputs = call_experts(experts, mx.array([[1.0], [2.0], [3.0]]), chosen)
    assert outputs.squeeze(-1).tolist() == [[1000, 1], [2, 20], [3000, 30]]
