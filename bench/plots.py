"""The plots of the report, as SVG that is readable on light and on dark pages."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from bench.figures import Figures
from bench.plan import Subject
from bench.records import Record, Results
from bench.report import NAMES, PLOTS
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

Points = Sequence[tuple[float, float]]

_GREY = "#7d8590"
_COLOURS = {
    "raw": _GREY, "holdfast": "#1f9d55", "restate": "#8b5cf6", "dbos": "#d97706", "langgraph": "#0ea5e9",
    "absurd": "#e5484d", "pgtask": "#db2777",
}  # fmt: skip
_CALLS = {
    "submit": ("submit", "#0ea5e9"), "claim": ("claim", "#1f9d55"), "page": ("first page", "#d97706"),
    "wake": ("wake-up by a signal", "#8b5cf6"), "purge": ("purge of 500 runs", "#e5484d"),
}  # fmt: skip

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "holdfast",
    "font.family": "sans-serif",
    "font.size": 10.5,
    "text.color": _GREY,
    "axes.labelcolor": _GREY,
    "axes.edgecolor": _GREY,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _GREY,
    "grid.alpha": 0.25,
}


def draw(results: Results, folder: Path) -> None:
    """Write the plots."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = Figures(results.records)
    drawn = {
        "bench-step": _draw_bars,
        "bench-concurrency": _draw_concurrency,
        "bench-history": lambda axes, figures: _draw_history(axes, results.records),
        "bench-scale": _draw_scale,
    }
    for name in PLOTS:
        with mpl.rc_context(_STYLE):
            canvas = Canvas(figsize=(8.4, 3.9), layout="constrained")
            drawn[name](canvas.add_subplot(), figures)
            canvas.savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None})


def _draw_bars(axes: Axes, figures: Figures) -> None:
    """Draw the cost of a step of each subject, the cheapest on top."""
    found = [figure for figure in figures.of("w1", "step") if figure.size == 1000 and figure.subject in NAMES]
    found.sort(key=lambda figure: -figure.value.median)
    for row, figure in enumerate(found):
        cost, ours = figure.value.median, figure.subject.kind == "ours"
        axes.barh(row, cost, 0.66, color=_COLOURS[figure.subject.system], alpha=1.0 if ours else 0.75)
        axes.annotate(
            f"{cost:.2g} ms" if cost < 10 else f"{cost:.0f} ms", (cost, row), xytext=(5, 0),
            textcoords="offset points", va="center", fontweight="bold" if ours else "normal",
        )  # fmt: skip
    axes.set_yticks(range(len(found)), [NAMES[figure.subject] for figure in found])
    for label, figure in zip(axes.get_yticklabels(), found, strict=True):
        label.set_fontweight("bold" if figure.subject.kind == "ours" else "normal")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("milliseconds a step, in a run of 1,000 steps (less is better)")
    axes.margins(x=0.12)


def _draw_concurrency(axes: Axes, figures: Figures) -> None:
    lines: dict[Subject, list[tuple[float, float]]] = defaultdict(list)
    for figure in figures.of("w2", "rate"):
        lines[figure.subject].append((figure.size, figure.value.median))
    _draw_lines(axes, lines, "runs at once", "durable steps a second (more is better)")


def _draw_history(axes: Axes, records: Sequence[Record]) -> None:
    """Draw the cost of each step in the longest run of each subject."""
    found = [record for record in records if record.workload == "w1" and record.result is not None]
    longest: dict[Subject, int] = defaultdict(int)
    for record in found:
        longest[record.subject] = max(record.size, longest[record.subject])
    curves: dict[Subject, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in found:
        if record.size == longest[record.subject] and record.result is not None:
            for step, seconds in record.result["curve"]:
                curves[record.subject][step].append(seconds * 1e3)
    lines = {
        subject: [(step, statistics.median(values)) for step, values in curve.items()]
        for subject, curve in curves.items()
    }
    _draw_lines(axes, lines, "steps so far", "milliseconds a step (less is better)")


def _draw_lines(axes: Axes, lines: Mapping[Subject, Points], across: str, up: str) -> None:
    for subject, name in NAMES.items():
        if subject in lines:
            dashes = ":" if subject.kind == "limit" else "--" if "postgres" in subject.variant else "-"
            width = 2.6 if subject.kind == "ours" else 1.4
            _plot(axes, lines[subject], name, _COLOURS[subject.system], dashes, width)
    _finish(axes, across, up)


def _draw_scale(axes: Axes, figures: Figures) -> None:
    for measure, (name, colour) in _CALLS.items():
        for store, dashes in (("sqlite", "-"), ("postgres", "--")):
            found = [each for each in figures.of("w8", measure) if each.subject == Subject("holdfast", store)]
            points = [(each.size, each.value.median) for each in found]
            if points:
                _plot(axes, points, f"{name}, {'SQLite' if store == 'sqlite' else 'PostgreSQL'}", colour, dashes, 1.8)
    _finish(axes, "runs in the store", "milliseconds (less is better)")


def _plot(axes: Axes, points: Points, name: str, colour: str, dashes: str, width: float) -> None:
    xs, ys = zip(*sorted(points), strict=True)
    marker = "o" if len(xs) < 8 else ""
    axes.plot(xs, ys, dashes, color=colour, linewidth=width, label=name, marker=marker, markersize=4)


def _finish(axes: Axes, across: str, up: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major")
    axes.tick_params(which="minor", length=0)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handlelength=2.6)
