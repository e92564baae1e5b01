"""The proof of exactness on Metal or CUDA: `make gpu`."""

from __future__ import annotations

import mlx.core as mx
import pytest

from .test_exact import CASES
from .test_exact import test_every_checkpoint_gives_the_bits_of_a_cold_run as prove_exact
from .zoo import Architecture

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("architecture", "dtype"), CASES)
def test_every_checkpoint_gives_the_bits_of_a_cold_run_on_the_gpu(
    architecture: Architecture, dtype: mx.Dtype
) -> None:
    assert mx.default_device() == mx.gpu, "there is no GPU, or KEEPWARM_TEST_DEVICE says cpu"
    prove_exact(architecture, dtype)
