"""The plots of the report, as SVG for light and dark pages."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from bench.figures import figures
from bench.plan import Subject
from bench.records import Record, Results
from bench.report import PLOTS
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

Points = Sequence[tuple[float, float]]

#: Readable on white and on near-black.
_GREY = "#7d8590"


@dataclass(frozen=True)
class Line:
    """How a subject is drawn."""

    label: str
    colour: str
    dashes: str = "-"
    width: float = 1.4


LINES = {
    Subject("raw", "sqlite-1"): Line("raw SQLite", _GREY, ":", 1.6),
    Subject("raw", "postgres-1"): Line("raw PostgreSQL", _GREY, "-.", 1.2),
    Subject("raw", "sqlite-group-1"): Line("raw SQLite, group commit", _GREY, ":", 1.6),
    Subject("raw", "postgres-group-1"): Line("raw PostgreSQL, group commit", _GREY, "-.", 1.2),
    Subject("holdfast", "sqlite"): Line("holdfast, SQLite", "#1f9d55", "-", 2.6),
    Subject("holdfast", "postgres"): Line("holdfast, PostgreSQL", "#1f9d55", "--", 2.2),
    Subject("restate", "server"): Line("Restate", "#8b5cf6"),
    Subject("dbos", "sqlite"): Line("DBOS, SQLite", "#d97706"),
    Subject("dbos", "postgres"): Line("DBOS, PostgreSQL", "#d97706", "--"),
    Subject("langgraph", "sqlite-delta"): Line("LangGraph, SQLite, delta", "#0ea5e9"),
    Subject("langgraph", "postgres-delta"): Line("LangGraph, PostgreSQL, delta", "#0ea5e9", "--"),
    Subject("langgraph", "sqlite"): Line("LangGraph, SQLite", "#e5484d"),
    Subject("langgraph", "postgres"): Line("LangGraph, PostgreSQL", "#e5484d", "--"),
}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "holdfast",
    "font.family": "sans-serif",
    "font.size": 10,
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
    """Write the three plots."""
    folder.mkdir(parents=True, exist_ok=True)
    lines_of = {
        "bench-history": (_history(results.records), "steps so far", "milliseconds a step"),
        "bench-concurrency": (_rates(results), "runs at once", "durable steps a second"),
        "bench-disk": (_disk(results), "steps", "megabytes on disk"),
    }
    for name in PLOTS:
        lines, across, up = lines_of[name]
        with mpl.rc_context(_STYLE):
            _draw_lines(lines, across, up).savefig(folder / f"{name}.svg", transparent=True, metadata={"Date": None})


def _history(records: Sequence[Record]) -> Mapping[Subject, Points]:
    """Return the cost of each step, in the longest run of each subject."""
    longest: dict[Subject, int] = {}
    for record in _of("w1", records):
        longest[record.subject] = max(record.size, longest.get(record.subject, 0))
    curves: dict[Subject, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in _of("w1", records):
        if record.size == longest[record.subject] and record.result is not None:
            for step, seconds in record.result["curve"]:
                curves[record.subject][step].append(seconds * 1e3)
    return {
        subject: [(step, statistics.median(values)) for step, values in curve.items()]
        for subject, curve in curves.items()
    }


def _rates(results: Results) -> Mapping[Subject, Points]:
    found: dict[Subject, list[tuple[float, float]]] = defaultdict(list)
    for figure in figures(_of("w2", results.records)):
        if figure.measure.name == "rate":
            found[figure.subject].append((figure.size, figure.value.median))
    return found


def _disk(results: Results) -> Mapping[Subject, Points]:
    found: dict[Subject, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in _of("w1", results.records):
        if record.result is not None and record.result.get("disk_bytes"):
            found[record.subject][record.size].append(record.result["disk_bytes"] / 1e6)
    return {
        subject: [(size, statistics.median(values)) for size, values in sorted(sizes.items())]
        for subject, sizes in found.items()
    }


def _of(workload: str, records: Sequence[Record]) -> Iterator[Record]:
    return (record for record in records if record.workload == workload and record.result is not None)


def _draw_lines(lines: Mapping[Subject, Points], across: str, up: str) -> Canvas:
    canvas = Canvas(figsize=(8.2, 4.2), layout="constrained")
    axes: Axes = canvas.add_subplot()
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    for subject, line in LINES.items():
        if subject in lines:
            xs, ys = zip(*sorted(lines[subject]), strict=True)
            axes.plot(
                xs, ys, line.dashes, color=line.colour, linewidth=line.width, label=line.label,
                marker="o" if len(xs) < 8 else "", markersize=3.5,
            )  # fmt: skip
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(True, which="major")
    axes.tick_params(which="minor", length=0)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, handlelength=2.6)
    return canvas
