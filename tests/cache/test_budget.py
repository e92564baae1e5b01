"""The default budget is a share of what is free."""

from __future__ import annotations

import os

import mlx.core as mx
import pytest

from keepwarm import machine
from keepwarm.cache.budget import default_budget_bytes
from keepwarm.cache.store import PrefixCache
from tests.cache.toy import TOYS


def test_default_budget_is_less_than_half_of_the_machine_and_not_nothing() -> None:
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert default_budget_bytes() > 1 << 20
    if mx.default_device() == mx.Device(mx.cpu):
        assert default_budget_bytes() < machine_bytes / 2
    cache = PrefixCache(TOYS["rows"].make)
    assert cache.ledger.budget_bytes > 1 << 20


def test_what_is_taken_when_the_cache_is_made_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "rooms", list)  # what others take meanwhile
    before = default_budget_bytes()
    weights = mx.zeros((64, 1024, 1024), mx.uint8)
    mx.eval(weights)
    assert default_budget_bytes() <= before - 0.4 * weights.nbytes + 4096
