"""Makes docs/benchmarks.md and a page for each scenario, of the reports in bench/results, a template,
and remarks.

    python -m bench.docs [FILE ...] [--tag TAG]

FILEs are reports to be kept in bench/results first, as `--json` wrote them, in place of the last of
the same scenario, model and device; with a tag beside it. The template is for the first page; remarks
on a scenario are in bench/remarks/NAME.md. docs/benchmarks/method.md and kernels.md are written by
hand.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from bench import glance, results
from keepwarm.bench import duel, plot, prefill
from keepwarm.bench.report import Report
from keepwarm.bench.scenarios import SCENARIOS
from keepwarm.bench.trace.tables import tables

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
FOLDER = PAGE.parent / "benchmarks"  # one page for each scenario
PLOTS = PAGE.parent / "plots"
TEMPLATE = HERE / "benchmarks.md.in"
REMARKS = HERE / "remarks"

_MADE = (
    "<!-- Made by `make docs` of bench/results/*.json and bench/remarks/{name}.md. Edit those. -->"
)

Tables = Callable[[Report], Sequence[Table]]

# Scenarios that ask no servers: what they are, what they do, and their tables.
_OTHERS: dict[str, tuple[str, str, Tables]] = {
    "prefill": (
        "how fast a new prompt is read",
        "A prompt that is in no cache, read without a server; keepwarm stores its checkpoints."
        " `ratio` is how many times faster keepwarm reads.",
        lambda report: [prefill.table(report)],
    ),
    "trace": (
        "what the cache saves on recorded workloads",
        "Recorded workloads through the real tree, placement and policy, with states replaced by"
        " their sizes. **keepwarm's policy was tuned on these very files**; the others were not."
        " `worth` is keepwarm's policy; `lru`, `fifo`, `type` (mlx-lm's order) and `marconi` choose in its place, in the"
        " same tree; `mlx-lm` is its own cache. `ahead` is how many points ours has more than the"
        " best of these, `of it` how many percent of the bound, which no cache of that size can"
        " pass; `oracle` is ours with the next use of everything known.",
        tables,
    ),
}
# Other models come after these, in the order of their names.
_FIRST = (
    "qwen3_5-dear",
    "qwen3_5-mini",
    "qwen3_5-small",
    "qwen3_5-9b",
    "qwen3-0.6b",
    "qwen3.5-35b-a3b",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes docs/benchmarks.md and its pages.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="a report to add")
    parser.add_argument("--tag", default="", help="a name for another size of the same")
    args = parser.parse_args()
    for file in args.files:
        print(results.keep(Report.read(file), tag=args.tag).relative_to(HERE.parent))
    reports = results.kept()
    write(reports)
    draw_all(reports)


def write(reports: Sequence[Report]) -> None:
    """All pages, without their pictures."""
    FOLDER.mkdir(exist_ok=True)
    PAGE.write_text(page(reports), encoding="utf-8")
    for name in _names():
        (FOLDER / f"{name}.md").write_text(scenario_page(name, reports), encoding="utf-8")


def page(reports: Sequence[Report]) -> str:
    """The first page: is it faster, and where is it not."""
    made = {
        "glance_cpu": lambda: glance.table(reports, "cpu"),
        "glance_gpu": lambda: glance.table(reports, "gpu"),
        "glance_trace": lambda: glance.traces(_of("trace", reports)),
        "losses": lambda: glance.losses(reports),
        "scenarios": lambda: "\n".join(_index()),
    }
    return re.sub(
        r"^\{\{(\w+)\}\}$",
        lambda match: made[match[1]](),
        TEMPLATE.read_text(encoding="utf-8"),
        flags=re.M,
    )


def scenario_page(name: str, reports: Sequence[Report]) -> str:
    """One scenario with all that was measured: what it asks, remarks, tables."""
    return "\n\n".join([_MADE.format(name=name), *_parts(name, _of(name, reports))]) + "\n"


def draw_all(reports: Sequence[Report]) -> None:
    """The pictures that the pages show."""
    PLOTS.mkdir(exist_ok=True)
    wanted = [report for name in _names() for report in _shown(name, reports)]
    for file in set(PLOTS.glob("*.png")) - {PLOTS / plot.name_of(report) for report in wanted}:
        file.unlink()
    for report in wanted:
        plot.draw(report, PLOTS)


def _index() -> Iterator[str]:
    yield "| page | |"
    yield "| --- | --- |"
    for name in _names():
        yield f"| [{name}](benchmarks/{name}.md) | {_about(name)[0]} |"


def _of(name: str, reports: Sequence[Report]) -> list[Report]:
    return _sorted([report for report in reports if report.scenario == name])


def _names() -> list[str]:
    return [*SCENARIOS, *_OTHERS]


def _shown(name: str, reports: Sequence[Report]) -> list[Report]:
    """One for each device: the first."""
    found = _of(name, reports)
    return [next(r for r in found if r.device == d) for d in dict.fromkeys(r.device for r in found)]


def _sorted(reports: Sequence[Report]) -> list[Report]:
    def place(report: Report) -> tuple[bool, int, str]:
        first = _FIRST.index(report.model) if report.model in _FIRST else len(_FIRST)
        return report.device == "gpu", first, report.model

    return sorted(reports, key=place)


# One scenario


def _parts(name: str, reports: Sequence[Report]) -> Iterator[str]:
    about, words, tables_of = _about(name)
    yield f"# {name}: {about}"
    yield f"{words} [How it was measured](method.md) explains the columns."
    remark = REMARKS / f"{name}.md"
    if remark.exists():
        yield remark.read_text(encoding="utf-8").strip()
    shown = _shown(name, reports)
    for report in shown:
        yield f"## {report.model}, {_machine(report)}"
        yield _caption(report)
        yield f"![{name}, {report.model}](../plots/{plot.name_of(report)})"
        yield from _written(tables_of(report))
    if others := [report for report in reports if report not in shown]:
        yield "## Other models"
        for report in others:
            yield _caption(report)
            yield from _written(tables_of(report))
    if not reports:
        yield f"Not measured yet: `keepwarm bench {name}`."


def _written(tables: Sequence[Table]) -> Iterator[str]:
    """Of several each with its title."""
    for table in tables:
        if len(tables) > 1:
            yield f"*{table.title}*"
        yield markdown(table)


def _about(name: str) -> tuple[str, str, Tables]:
    if name in _OTHERS:
        return _OTHERS[name]
    entry = SCENARIOS[name]
    return entry.help, entry.description, lambda report: [duel.table(report, entry.module(name))]


def _caption(report: Report) -> str:
    versions = ", ".join(f"{package} {number}" for package, number in report.versions.items())
    return f"`{report.command}`, model `{report.model}`, {_machine(report)}; {versions}:"


def _machine(report: Report) -> str:
    found: dict[str, Any] = report.machine
    device = re.sub(r"\((R|TM)\)|CPU @.*", "", str(found.get("device") or "")).strip()
    if report.device == "gpu":
        return f"one {device or 'GPU'}"
    cores = f"{found['cores']} CPU cores"
    return f"{cores} ({device}, {found['os']})" if device else cores


def markdown(table: Table) -> str:
    """A table of the terminal for a page."""
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    lines = [[_escaped(str(column.header)) for column in table.columns]]
    lines.append(["---" if column.justify == "left" else "---:" for column in table.columns])
    for cells in zip(*columns):
        first, *rest = cells
        name = f"**{first}**" if not any(rest) else first.strip()
        lines.append([_escaped(name), *map(_escaped, rest)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("~", "\\~")


if __name__ == "__main__":
    main()
