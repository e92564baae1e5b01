"""What a scenario found, as JSON and as a table. Plain data."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from keepwarm.errors import BadInput

_PACKAGES = ("keepwarm", "mlx", "mlx-lm")


def _versions() -> dict[str, str]:
    return {name: _version(name) for name in _PACKAGES} | {"python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a copy of its files
        return "unknown"


def _machine() -> dict[str, Any]:
    """What a figure depends on, and no names that anyone gave it."""
    return {"os": platform.system(), "architecture": platform.machine(), "cores": os.cpu_count()}


@dataclass(slots=True)
class Report:
    """One run of a scenario. A row says its `system`, what it was asked and what it measured;
    measurements are lists, one number for each round."""

    scenario: str
    model: str
    device: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    bounds: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=_versions)
    machine: dict[str, Any] = field(default_factory=_machine)
    command: str = ""  # that makes it

    @staticmethod
    def read(file: Path) -> Report:
        """Raises BadInput."""
        try:
            return Report(**json.loads(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise BadInput(f"cannot read {file}: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise BadInput(f"{file} is not a report of a benchmark: {error}") from error

    def as_json(self) -> str:
        return json.dumps(
            {
                "scenario": self.scenario,
                "model": self.model,
                "device": self.device,
                "machine": self.machine,
                "command": self.command,
                "versions": self.versions,
                "rows": self.rows,
                "bounds": self.bounds,
            },
            indent=2,
        )

    def write(self, file: Path) -> None:
        """Raises BadInput."""
        try:
            file.write_text(self.as_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise BadInput(f"cannot write {file}: {error.strerror}") from error

    def table(self, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
        used = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        title = f"{self.scenario}: {self.model} on {self.device}"
        table = Table(
            title=title, caption=used, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False
        )  # as narrow as they come: many are as wide as a terminal
        for i, column in enumerate(columns):
            # Where the terminal is narrow, the names give way.
            table.add_column(column, justify="right" if i else "left", no_wrap=i > 0)
        for line in lines:
            table.add_row(*line)
        return table


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """`±4%`: how far the rounds lie from their median, at most; `n=1` where there is but one."""
    if len(values) == 1:
        return "n=1"
    middle = median(values)
    return f"±{max(abs(value - middle) for value in values) / middle:.0%}"
