"""What a model is known by on the disk."""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.tuner.utils import linear_to_lora_layers

from keepwarm.model.fingerprint import facts_of
from tests.architectures.zoo import ARCHITECTURES


def facts(scale: float) -> dict[str, str]:
    model = ARCHITECTURES["llama"].build(mx.float32)
    linear_to_lora_layers(model, 1, {"rank": 2, "scale": scale, "dropout": 0.0})
    return facts_of(model, exact=True)


def test_an_adapters_scale_is_part_of_what_a_model_is() -> None:
    """It is no weight and stands in no configuration, and another one gives other states."""
    assert facts(10.0) == facts(10.0)
    assert facts(10.0) != facts(20.0)
