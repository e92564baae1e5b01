"""The one place where bytes are counted. No mlx."""

from __future__ import annotations

from dataclasses import dataclass, field

from keepwarm.errors import BadInput, Corrupt


@dataclass(slots=True)
class Ledger:
    """Bytes held against a budget. `add` refuses to pass it, so nobody can."""

    budget_bytes: int
    rows_bytes: int = 0
    snapshot_bytes: int = 0
    peak_bytes: int = field(default=0)
    reserved_bytes: int = 0  # of the budget, lent to running sequences for now
    staged_bytes: int = 0  # on their way from or to the disk

    def __post_init__(self) -> None:
        if self.budget_bytes < 0:
            raise BadInput(f"a budget cannot be negative, got {self.budget_bytes}")

    @property
    def held_bytes(self) -> int:
        return self.rows_bytes + self.snapshot_bytes

    @property
    def free_bytes(self) -> int:
        """What may be added; negative when more was lent than was free."""
        return self.budget_bytes - self.reserved_bytes - self.staged_bytes - self.held_bytes

    def add(self, *, rows_bytes: int = 0, snapshot_bytes: int = 0) -> None:
        """Mutates. Raises Corrupt when that would pass the budget: room is made before."""
        if rows_bytes + snapshot_bytes > self.free_bytes:
            raise Corrupt(f"{rows_bytes + snapshot_bytes} bytes do not fit in {self.free_bytes}")
        self.rows_bytes += rows_bytes
        self.snapshot_bytes += snapshot_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)

    def stage(self, nbytes: int) -> bool:
        """That much is on its way, and counted until it is unstaged. False, and nothing happens,
        when it does not fit. Mutates."""
        if nbytes > self.free_bytes:
            return False
        self.staged_bytes += nbytes
        return True

    def unstage(self, nbytes: int) -> None:
        """Mutates."""
        self.staged_bytes -= nbytes

    def clear(self) -> None:
        """Nothing is held any more. Mutates."""
        self.rows_bytes = self.snapshot_bytes = 0

    def remove(self, *, rows_bytes: int = 0, snapshot_bytes: int = 0) -> None:
        """Mutates."""
        self.rows_bytes -= rows_bytes
        self.snapshot_bytes -= snapshot_bytes
