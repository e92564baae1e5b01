"""A report as a picture: PNG, white, in colours that everyone can tell apart. Any thread.

matplotlib is imported only when something is drawn: it comes with the extra `bench`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from keepwarm.bench.report import Report, median
from keepwarm.bench.trace.policies import ORACLE
from keepwarm.errors import BadInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Value = Callable[[Row], float | None]

_WIDTH, _DPI = 6.0, 140  # inches; small enough to be read in a column of 600 pixels
# After Okabe and Ito. Ours are blue, theirs are red, in every setting.
_COLOURS = {
    "keepwarm": ("#0072B2", "#56B4E9", "#009E73", "#999999", "#CC79A7"),
    "mlx-lm": ("#D55E00", "#E69F00", "#F0E442"),
}
_BOUND = "#000000"
_GRID = "#dddddd"
_NUM_SHADES = 10  # of each colour, towards white: at the edges of lines
_MARKERS = "os^Dvx"


def check() -> None:
    """Raises BadInput where nothing can be drawn."""
    if find_spec("matplotlib") is None:
        raise BadInput("--plot needs matplotlib: pip install 'keepwarm[bench]'")


def draw(report: Report, folder: Path) -> Path:
    """Writes the picture of a report into a folder, and says where. Raises BadInput."""
    check()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(_WIDTH, 3.4), dpi=_DPI, layout="constrained", facecolor="white")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(f"{report.scenario}: {report.model} on {_place(report)}", fontsize=10)
    _DRAWERS.get(report.scenario, _cached)(figure, report)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    palette = _palette()
    image = Image.fromarray(_nearest(pixels[..., :3], palette))
    image.putpalette(palette.tobytes())
    file = folder / name_of(report)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        image.save(file, optimize=True)
    except OSError as error:
        raise BadInput(f"cannot write {file}: {error.strerror}") from error
    return file


def _palette() -> NDArray[np.uint8]:
    """The colours that are drawn with, and their shades, (number, 3): a third of the size of a file
    with all that are there, and those that were chosen of a picture's own would be mostly greys."""
    colours = [colour for those in _COLOURS.values() for colour in those] + [_BOUND, _GRID]
    full = np.array([list(bytes.fromhex(colour[1:])) for colour in colours])
    part = np.linspace(0, 1, _NUM_SHADES)[:, None, None]
    shades: NDArray[np.uint8] = np.rint(255 - part * (255 - full)).astype(np.uint8)
    return shades.reshape(-1, 3)


def _nearest(pixels: NDArray[np.uint8], palette: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """For each pixel the place of its colour, or of the one next to it."""
    found, place = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True)
    apart = found[:, None].astype(int) - palette.astype(int)
    nearest: NDArray[np.uint8] = (apart**2).sum(axis=-1).argmin(axis=1).astype(np.uint8)
    return nearest[place].reshape(pixels.shape[:2])


def name_of(report: Report) -> str:
    """The name of its file."""
    model = re.sub(r"[^\w.-]+", "-", report.model).strip("-.")
    return f"{report.scenario}-{model}-{device_of(report)}.png"


def device_of(report: Report) -> str:
    """`cpu`, `gpu`, or `sizes` where nothing was computed."""
    return report.device if report.device in ("cpu", "gpu") else "sizes"


def _place(report: Report) -> str:
    if report.device == "gpu":
        return str(report.machine.get("device") or "gpu")
    cores = report.machine.get("cores")
    return f"{cores} CPU cores" if report.device == "cpu" and cores else report.device


# What rows have in common


def _systems(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Name and setting, ours first."""
    found = dict.fromkeys((row["system"], str(_setting(row))) for row in rows)
    return sorted(found, key=lambda place: place[0] != "keepwarm")


def _setting(row: Row) -> str:
    return row.get("setting") or row.get("policy") or ""


def _of(rows: Sequence[Row], system: tuple[str, str]) -> list[Row]:
    return [row for row in rows if (row["system"], str(_setting(row))) == system]


def _colours(systems: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    taken = {name: iter(colours * 2) for name, colours in _COLOURS.items()}
    return {system: next(taken[system[0]], _BOUND) for system in systems if system[0] in taken}


def _share(key: str) -> Value:
    return lambda row: 100 * row[key] / row["prompt_tokens"] if row["prompt_tokens"] else None


def _noted(key: str, unit: float = 1) -> Value:
    """The median of what was noted in each round."""

    def value(row: Row) -> float | None:
        found = [one for one in row.get("notes", {}).get(key, []) if one is not None]
        return median(found) / unit if found else None

    return value


# Bars


def _bars(
    axes: Axes, rows: Sequence[Row], value: Value, words: str, *, bound: Value | None = None
) -> None:
    """For each case one bar a system, from top to bottom; the bound is a line across them."""
    cases = list(dict.fromkeys(str(row["case"]) for row in rows))
    systems = _systems(rows)
    colours, height = _colours(systems), 0.8 / len(systems)
    for i, system in enumerate(systems):
        found = [(row, value(row)) for row in _of(rows, system)]
        places = [cases.index(str(row["case"])) - 0.4 + (i + 0.5) * height for row, _ in found]
        amounts = [amount or 0.0 for _, amount in found]
        label = " ".join(system).strip()
        bars = axes.barh(places, amounts, 0.92 * height, color=colours[system], label=label)
        axes.bar_label(bars, [_short(amount) for _, amount in found], padding=4, fontsize=7)
    if bound is not None:
        for i, case in enumerate(cases):
            most = bound(next(row for row in rows if row["case"] == case)) or 0.0
            axes.plot(
                [most, most], [i - 0.45, i + 0.45], color=_BOUND, lw=1.5,
                label="bound" if i == 0 else None,
            )  # fmt: skip
    axes.set_yticks(range(len(cases)), cases, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.13)
    axes.set_xlim(left=0)
    axes.set_xlabel(words, fontsize=9)
    _tidy(axes, "x")


def _short(amount: float | None) -> str:
    if amount is None:
        return ""
    return (
        f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}" if amount >= 1 else f"{amount:.2g}"
    )


def _tidy(axes: Axes, grid: str) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=_GRID, lw=0.6)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(4, len(labels)), fontsize=8,
        frameon=False,
    )  # fmt: skip


def _panels(figure: Figure, rows: Sequence[Row], panels: Sequence[tuple[Value, str]]) -> None:
    """Bars beside each other, with the same cases."""
    num_bars = len({row["case"] for row in rows}) * len(_systems(rows))
    figure.set_figheight(1.5 + 0.22 * num_bars)
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (value, words) in zip(all_axes, panels):
        _bars(axes, rows, value, words)
    all_axes[0].set_ylim(len({row["case"] for row in rows}) - 0.5, -0.5)
    _legend(figure, all_axes[0])


# The scenarios


def _cached(figure: Figure, report: Report) -> None:
    """What was cached, of what could have been."""
    rows = [row for row in report.rows if row["max_cached_tokens"]] or report.rows
    figure.set_figheight(1.5 + 0.22 * len(rows))
    axes = figure.subplots()
    bound = _share("max_cached_tokens")
    _bars(axes, rows, _share("cached_tokens"), "prompt tokens from the cache, %", bound=bound)
    _legend(figure, axes)


def _chat(figure: Figure, report: Report) -> None:
    """Turn by turn."""
    cached, first = figure.subplots(1, 2)
    systems = _systems(report.rows)
    for system, colour in _colours(systems).items():
        [row] = _of(report.rows, system)
        by_turn, num_turns = row["by_request"], row["num_requests"]
        turns = range(1, num_turns + 1)
        pairs = zip(by_turn["cached_tokens"], by_turn["prompt_tokens"])
        style: dict[str, Any] = {"color": colour, "lw": 1.5}
        cached.plot(turns, [100 * a / b for a, b in pairs], label=" ".join(system), **style)
        rounds = [row["ttft_s"][i::num_turns] for i in range(num_turns)]
        first.plot(turns, [1e3 * median(times) for times in rounds], **style)
    cached.set_ylabel("prompt tokens from the cache, %", fontsize=9)
    cached.set_ylim(0, 102)
    first.set_ylabel("time to first token, ms", fontsize=9)
    first.set_ylim(bottom=0)
    for axes in (cached, first):
        axes.set_xlabel("turn", fontsize=9)
        _tidy(axes, "y")
    _legend(figure, cached)


def _burst(figure: Figure, report: Report) -> None:
    def per_distinct(row: Row) -> float | None:
        read = row.get("read_tokens")
        return None if read is None else float(read / row["distinct_tokens"])

    times = _noted("all_firsts_s")
    panels = [(per_distinct, "tokens read, over distinct ones"), (times, "all first tokens, s")]
    _panels(figure, report.rows, panels)


def _mixed(figure: Figure, report: Report) -> None:
    gaps = [(_noted("gap_s", 1e-3), "gap, ms"), (_noted("longest_gap_s", 1e-3), "longest gap, ms")]
    _panels(figure, report.rows, [*gaps, (_noted("tokens_per_s"), "tokens/s, all")])


def _memory(figure: Figure, report: Report) -> None:
    panels = [(_noted("held_bytes", 1e6), "held, MB"), (_share("cached_tokens"), "from cache, %")]
    if any("large_bytes" in row for row in report.rows):
        panels.insert(1, (_noted("large_bytes", 1e9), "as 35B-A3B, GB"))
    _panels(figure, report.rows, panels)


def _prefill(figure: Figure, report: Report) -> None:
    rows = [{**row, "case": f"{row['prompt_tokens']:,} tokens"} for row in report.rows]
    _panels(
        figure,
        rows,
        [(lambda row: float(row["prompt_tokens"] / median(row["ttft_s"])), "read, tokens/s")],
    )


def _prefix(figure: Figure, report: Report) -> None:
    """Over the length, both axes in powers."""
    axes = figure.subplots()
    styles = {"one message, cold": "o-", "nearest": "s--", "exact": "^:"}
    lengths: set[int] = set()
    for system, colour in _colours(_systems(report.rows)).items():
        for kind, style in styles.items():
            found = {
                int(str(row["case"]).removesuffix(f", {kind}").replace(",", "")): row
                for row in _of(report.rows, system)
                if str(row["case"]).endswith(f", {kind}")
            }
            lengths |= set(found)
            times = [1e3 * median(row["ttft_s"]) for row in found.values()]
            label = f"{' '.join(system).strip()}, {kind.removeprefix('one message, ')}"
            axes.plot(list(found), times, style, color=colour, ms=5, lw=1.5, label=label)
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    axes.set_xticks(sorted(lengths), [f"{length:,}" for length in sorted(lengths)])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("prompt, tokens", fontsize=9)
    axes.set_ylabel("time to first token, ms", fontsize=9)
    _tidy(axes, "both")
    _legend(figure, axes)


def _trace(figure: Figure, report: Report) -> None:
    """Hits over the budget, a panel for each trace."""
    traces = list(dict.fromkeys(str(row["trace"]) for row in report.rows))
    panels = figure.subplots(1, len(traces), sharey=True, squeeze=False)[0]
    systems = _systems(report.rows)
    # Who knows the future is drawn like the bound.
    colours = _colours([system for system in systems if system[1] != ORACLE])
    for axes, trace in zip(panels, traces):
        for i, system in enumerate(systems):
            found = [
                (row["budget_bytes"] / 1e9, 100 * row["cached_tokens"] / row["prompt_tokens"])
                for row in _of(report.rows, system)
                if row["trace"] == trace
            ]
            axes.plot(
                *zip(*found), color=colours.get(system, _BOUND), lw=1.3, ms=4, label=system[1],
                marker=_MARKERS[i % len(_MARKERS)], ls="--" if system not in colours else "-",
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(trace, fontsize=8)
        axes.set_xlabel("budget, GB", fontsize=9)
        _tidy(axes, "y")
    panels[0].set_ylabel("prompt tokens from the cache, %", fontsize=9)
    _legend(figure, panels[0])


_DRAWERS: dict[str, Callable[[Figure, Report], None]] = {
    "chat": _chat,
    "burst": _burst,
    "mixed": _mixed,
    "memory": _memory,
    "prefill": _prefill,
    "prefix": _prefix,
    "trace": _trace,
}
