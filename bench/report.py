"""The report: a Markdown table for each workload and one of the targets, from the records of a measurement."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.figures import MEASURES, Figure, Spread, figures
from bench.plan import AXES, CAPS, TITLES, Subject
from bench.records import Record, Results
from bench.targets import Outcome, outcomes

BEGIN, END = "<!-- written by python -m bench --report -->", "<!-- end of what is written -->"

#: Of these measures every size is shown; of the others the largest that a subject was measured in.
_EVERY_SIZE = {"w1": ("step",), "w2": ("rate",), "w4": ("step",), "w5": ("step",), "w7": ("rate", "busy")}


#: By file name: what a plot shows.
PLOTS = {
    "bench-history": "What a step costs as the history grows",
    "bench-concurrency": "Durable steps a second as more runs go on at once",
    "bench-disk": "What a run occupies",
}


def page_part(results: Results) -> str:
    """All of the generated part of the page: the plots and the tables."""
    plots = [f"{words}:\n\n![{words}](assets/{name}.svg)" for name, words in PLOTS.items()]
    return "\n\n".join(["## Plots", *plots, tables(results)])


def tables(results: Results) -> str:
    """The machine, the targets, and a table for each workload."""
    known = figures(results.records)
    parts = [_machine(results), "## Targets", _targets(outcomes(known))]
    for workload, title in TITLES.items():
        records = [record for record in results.records if record.workload == workload]
        if records:
            found = [figure for figure in known if figure.workload == workload]
            parts += [f"## {title}", _table(workload, found, records), _notes(workload, records)]
    return "\n\n".join(part for part in parts if part)


def put_into(page: Path, generated: str) -> None:
    """Replace what stands between the markers of the page."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{generated}\n\n{END}{after}")


def _machine(results: Results) -> str:
    it = results.machine
    memory = int(it["memory_bytes"]) / 2**30
    return (
        f"Measured on {it['cores']} cores ({it['processor']}), {memory:.0f} GB of memory, {it['kernel']},"
        f" {it['file_system']}, Python {it['python']}. {_versions(results.records)}"
    )


def _versions(records: Iterable[Record]) -> str:
    found: dict[str, str] = {}
    for record in records:
        found |= (record.result or {}).get("versions", {})
    found.pop("python", None)
    return "Versions: " + ", ".join(f"{name} {version}" for name, version in sorted(found.items())) + "."


def _targets(found: Sequence[Outcome]) -> str:
    rows = []
    for outcome in found:
        bound = f"{'at most' if outcome.target.better == 'less' else 'at least'} {outcome.target.bound:g}"
        measured = "not measured" if outcome.measured is None else f"{outcome.measured:.2f}"
        met = {True: "met", False: "**not met**", None: ""}[outcome.met]
        rows.append([outcome.target.words, outcome.what, bound, measured, met])
    return _markdown(["target", "of", "bound", "measured", ""], rows)


def _table(workload: str, found: Sequence[Figure], records: Sequence[Record]) -> str:
    subjects = list(dict.fromkeys(sorted((r.subject for r in records), key=_order)))
    columns = _columns(workload, found)
    titles = {measure.name: measure.title for measure in MEASURES[workload]}
    head = [titles[name] + (f", {_format_count(size, AXES[workload])}" if size else "") for name, size in columns]
    rows = [
        [str(subject), *(_cell(workload, subject, name, size, found, records) for name, size in columns)]
        for subject in subjects
    ]
    return _markdown(["", *head], rows)


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number != 1 else f"1 {noun.removesuffix('s')}"


def _order(subject: Subject) -> tuple[int, str, str]:
    return (["limit", "ours", "peer"].index(subject.kind), subject.system, subject.variant)


def _columns(workload: str, found: Sequence[Figure]) -> list[tuple[str, int | None]]:
    """Measure and size; no size for the largest."""
    sizes = sorted({figure.size for figure in found})
    columns: list[tuple[str, int | None]] = []
    for measure in MEASURES[workload]:
        every = measure.name in _EVERY_SIZE.get(workload, ())
        columns += [(measure.name, size) for size in sizes] if every else [(measure.name, None)]
    return columns


def _cell(
    workload: str, subject: Subject, measure: str, size: int | None, found: Sequence[Figure], records: Sequence[Record]
) -> str:
    mine = [figure for figure in found if figure.subject == subject and figure.measure.name == measure]
    if size is not None:
        cap = CAPS.get((workload, subject.system, subject.variant))
        if cap is not None and size > cap:
            return "not asked"
        mine = [figure for figure in mine if figure.size == size]
        if not mine and any(r.failed and r.subject == subject and r.size == size for r in records):
            return "failed"
    return _format_figure(max(mine, key=lambda figure: figure.size)) if mine else "–"


def _format_figure(figure: Figure) -> str:
    """Median, spread and ratio."""
    value, unit = figure.value, figure.measure.unit
    blank = "" if unit in ("/s", "×", "%") else " "
    text = f"{_number(value.median)}{blank}{unit}"
    if len(figure.values) > 1 and _number(value.low) != _number(value.high):
        text += f" ({_number(value.low)}–{_number(value.high)})"
    ratio: Spread | None = figure.ratio if figure.measure.ratio == "limit" else None
    if ratio is None:
        return text
    return f"{text}, **{ratio.median:.0%}**" if figure.measure.better == "more" else f"{text}, **{ratio.median:.2f}×**"


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _notes(workload: str, records: Sequence[Record]) -> str:
    """Doubts about fairness, what failed, and what was not asked for."""
    lines: dict[str, None] = {}
    for record in records:
        doubt = (record.result or {}).get("doubt")
        if doubt:
            lines[f"- {record.system}: {doubt}"] = None
        if record.failed:
            lines[f"- {record.subject} at {_format_count(record.size, AXES[workload])} failed: `{record.failed}`"] = (
                None
            )
    there = {record.subject for record in records}
    for (capped, system, variant), cap in CAPS.items():
        if capped == workload and Subject(system, variant) in there:
            lines[f"- {system} {variant} is asked for {cap:,} {AXES[workload]} at most: its cost is quadratic."] = None
    return "\n".join(lines)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
