"""What every test shares: how hypothesis searches and which device mlx computes on.

HYPOTHESIS_PROFILE     quick (the same examples in every run) or long (many more, always new)
KEEPWARM_TEST_DEVICE   cpu or gpu; mlx's own choice when unset
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# No test may need the network; this holds for whatever is imported after this line.
os.environ["HF_HUB_OFFLINE"] = "1"
# Servers keep prompts on disk by default; tests that are about it name a folder.
os.environ["KEEPWARM_DISK_CACHE"] = "off"
# Every core has tests of its own, and OpenBLAS would start a thread per core in each of them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A first example pays for imports and compiled kernels: times say nothing about the code.
settings.register_profile(
    "quick",
    max_examples=60,
    stateful_step_count=30,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long",
    max_examples=2000,
    stateful_step_count=100,
    derandomize=False,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_configure() -> None:
    import mlx.core as mx

    name = os.environ.get("KEEPWARM_TEST_DEVICE")
    if name not in (None, "cpu", "gpu"):
        raise pytest.UsageError(f"KEEPWARM_TEST_DEVICE is cpu or gpu, not {name!r}")
    try:
        if name is not None:
            mx.set_default_device(mx.cpu if name == "cpu" else mx.gpu)
    except ValueError as error:
        raise pytest.UsageError(f"KEEPWARM_TEST_DEVICE={name}: {error}") from error
    if mx.default_device() == mx.cpu:
        # There, mlx starts a C++ compiler for every new shape of a compiled function.
        mx.disable_compile()
    # What the server computes with; mlx-lm's own is compared in tests/model.
    from keepwarm.model import speedups

    speedups.install()
