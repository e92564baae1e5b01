"""The one place where bytes are counted never lets the budget be passed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepwarm.cache.ledger import Ledger
from keepwarm.errors import BadInput, Corrupt

AMOUNTS = st.integers(0, 60)


@given(budget=st.integers(0, 200), steps=st.lists(st.tuples(st.booleans(), AMOUNTS, AMOUNTS)))
def test_ledger_is_never_above_its_budget(budget: int, steps: list[tuple[bool, int, int]]) -> None:
    ledger, rows, snapshots, peak = Ledger(budget), 0, 0, 0
    for is_added, rows_bytes, snapshot_bytes in steps:
        if not is_added:
            rows_bytes, snapshot_bytes = min(rows, rows_bytes), min(snapshots, snapshot_bytes)
            ledger.remove(rows_bytes=rows_bytes, snapshot_bytes=snapshot_bytes)
            rows, snapshots = rows - rows_bytes, snapshots - snapshot_bytes
        elif rows + snapshots + rows_bytes + snapshot_bytes <= budget:
            ledger.add(rows_bytes=rows_bytes, snapshot_bytes=snapshot_bytes)
            rows, snapshots = rows + rows_bytes, snapshots + snapshot_bytes
        else:
            with pytest.raises(Corrupt, match="do not fit"):
                ledger.add(rows_bytes=rows_bytes, snapshot_bytes=snapshot_bytes)
        peak = max(peak, rows + snapshots)
        assert (ledger.rows_bytes, ledger.snapshot_bytes) == (rows, snapshots)
        assert ledger.held_bytes == rows + snapshots
        assert ledger.held_bytes + ledger.free_bytes == budget
        assert ledger.peak_bytes == peak <= budget


def test_cleared_ledger_remembers_its_peak_only() -> None:
    ledger = Ledger(100)
    ledger.add(rows_bytes=30, snapshot_bytes=20)
    ledger.clear()
    assert (ledger.held_bytes, ledger.free_bytes, ledger.peak_bytes) == (0, 100, 50)


def test_negative_budget_is_refused() -> None:
    with pytest.raises(BadInput, match="-1"):
        Ledger(-1)
