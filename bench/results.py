"""The reports that docs/benchmarks.md is made of: one file for each scenario, model and device, and
others of the same with a tag."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from keepwarm.bench import plot
from keepwarm.bench.report import Report

FOLDER = Path(__file__).parent / "results"
# What no table and no picture shows. Turn by turn is for chats.
_DROPPED = {"by_request"}
_BY_REQUEST = {"chat"}
_NUM_DIGITS = 4


def keep(report: Report, folder: Path = FOLDER, *, tag: str = "") -> Path:
    """Writes a report, less what is not needed. Raises BadInput."""
    dropped = set() if report.scenario in _BY_REQUEST else _DROPPED
    rows = [{key: row[key] for key in row if key not in dropped} for row in report.rows]
    report.rows = [_rounded(row) for row in rows]
    report.versions.setdefault("code", _code())
    folder.mkdir(parents=True, exist_ok=True)
    stem = plot.name_of(report).removesuffix(".png")
    file = folder / (f"{stem}_{tag}.json" if tag else f"{stem}.json")
    report.write(file)
    # A line for each row: a file that can be read, and compared.
    data = json.loads(file.read_text(encoding="utf-8"))
    rows_ = ",\n    ".join(json.dumps(row) for row in data.pop("rows"))
    head = json.dumps(data, indent=2).removesuffix("\n}")
    file.write_text(f'{head},\n  "rows": [\n    {rows_}\n  ]\n}}\n', encoding="utf-8")
    return file


def _code() -> str:
    """Day and commit of this checkout: keepwarm's version says little between two releases."""
    command = ["git", "-C", str(FOLDER), "log", "-1", "--format=%cs (%h)"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def kept(folder: Path = FOLDER) -> list[Report]:
    """All of them, in the order of their files. Raises BadInput."""
    return [Report.read(file) for file in sorted(folder.glob("*.json"))]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_NUM_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value
