"""Commands for batches: map runs an agent for each line of a file, results prints what the runs of a batch returned."""

import asyncio
import csv
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from holdfast.app import App
from holdfast.cli.listeners import ProgressListener
from holdfast.cli.loading import build_app, load_object, select_agent_name
from holdfast.cli.opening import open_client
from holdfast.cli.options import (
    QUERY_OPTIONS,
    RUN_OPTIONS,
    AgentOption,
    CodeArgument,
    CodeStoreOption,
    JsonOption,
    QuietOption,
    StoreOption,
    take_options,
)
from holdfast.cli.output import (
    CommandError,
    UsageError,
    format_error,
    format_value,
    print_diagnostic,
    print_json,
    sanitize,
)
from holdfast.cli.run_session import run_app
from holdfast.clock import CLOCK
from holdfast.core.errors import RunInterrupted
from holdfast.core.run.info import RunOptions
from holdfast.core.run.waiting import RunWaiting
from holdfast.runtime.reading.formatting import format_cost, format_duration
from holdfast.runtime.reading.run_views import RunQuery
from holdfast.runtime.run_map import BATCH_LABEL, BatchItem

_COLUMNS = ("run_id", "status", "output", "error", "cost_usd")
_PAGE_SIZE = 200

#: Spreadsheets execute a cell that begins with one of these, unless it is a number.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


class BatchProgress:
    """Counts the items of a batch, and shows them as one line."""

    def __init__(self, total: int, *, shown: bool) -> None:
        self._total, self._shown = total, shown and sys.stderr.isatty()
        self._began = CLOCK.get().now()
        self.done = self.failed = self.waiting = 0
        #: Runs that an earlier process has ended: they say nothing about the rate.
        self.earlier = 0
        self._cost = 0.0

    async def refresh(self) -> None:
        """Show the line every second, until it is cancelled."""
        while self._shown:
            self._show()
            await asyncio.sleep(1)

    def _show(self) -> None:
        print(f"\r\x1b[2K{self}", end="", file=sys.stderr, flush=True)

    def add(self, item: BatchItem[Any]) -> None:
        """Count an item, and show the line on a terminal."""
        if item.result is not None:
            self.done += 1
            self._cost += item.result.usage.cost_usd
        elif isinstance(item.error, RunWaiting):
            self.waiting += 1
        else:
            self.failed += 1
        if self._shown:
            self._show()

    def close(self) -> None:
        """Print the line for the last time."""
        if self._shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
        print_diagnostic(str(self))

    def __str__(self) -> str:
        ended = self.done + self.failed + self.waiting
        passed = CLOCK.get().now() - self._began
        text = f"{ended} of {self._total}: {self.done} done, {self.failed} failed, {self.waiting} waiting"
        text += f", {format_cost(self._cost)}" if self._cost else ""
        recent = ended - self.earlier
        if recent > 0 and passed.total_seconds() > 0:
            text += f", {recent / passed.total_seconds():.1f} a second"
            if left := self._total - ended:
                text += f", {format_duration(passed / recent * left)} left"
        return text


@take_options("options", RUN_OPTIONS)
def map(
    code: CodeArgument,
    prompts: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV with a column prompt, or text with one prompt per line.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Write the results here, as CSV.")],
    batch_id: Annotated[
        str, typer.Option("--id", metavar="ID", help="The id of the batch. Default: the name of the file.")
    ] = "",
    agent: AgentOption = "",
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, help="How many runs are in progress at once.")
    ] = 16,
    *,
    options: RunOptions,
    quiet: QuietOption = False,
    store: CodeStoreOption = "",
) -> None:
    """Run an agent for each prompt of a file, and write the results as CSV, in the order of the file.

    Ctrl-C stops it, and the same command continues: finished runs are not repeated, unfinished ones resume. Exits with
    1 if a run failed or waits.
    """
    rows = read_rows(prompts)
    app = build_app(load_object(code), code, store=store, create=True, listener=ProgressListener())
    if app.store is None:
        raise CommandError("this App has no store: name one with --store")
    name, listener = select_agent_name(app, agent), ProgressListener()
    progress = BatchProgress(len(rows), shown=not quiet)

    async def work() -> bool:
        with out.open("w", newline="", encoding="utf-8") as file:
            return await _map(app, name, rows, batch_id or prompts.stem, concurrency, options, progress, file)

    ended = asyncio.run(run_app(app, listener, work, on_force_quit=progress.close))
    progress.close()
    if not ended:
        print_diagnostic("interrupted; start again to continue")
        sys.exit(128 + (listener.stop_signal or 2))
    sys.exit(1 if progress.failed or progress.waiting else 0)


async def _map(
    app: App,
    agent: str,
    rows: Sequence[Mapping[str, str]],
    batch_id: str,
    concurrency: int,
    options: RunOptions,
    progress: BatchProgress,
    file: IO[str],
) -> bool:
    """Return whether the batch ended."""
    more = [column for column in rows[0] if column not in _COLUMNS]
    writer = csv.writer(file)
    writer.writerow([_neutralise(cell) for cell in (*more, *_COLUMNS)])
    progress.earlier = await app.count(labels={BATCH_LABEL: batch_id}, status=("done", "failed"))
    prompts = [row["prompt"] for row in rows]
    items = app.map(agent, prompts, id=batch_id, concurrency=concurrency, ordered=False, **options)
    lines: dict[int, list[Any]] = {}
    written = 0
    refreshing = asyncio.create_task(progress.refresh())
    try:
        async for item in items:
            progress.add(item)
            lines[item.index] = [*(rows[item.index][column] for column in more), *_format_item(item)]
            while written in lines:  # in the order of the rows
                writer.writerow([_neutralise(cell) for cell in lines.pop(written)])
                written += 1
            file.flush()
    except RunInterrupted:
        return False
    finally:
        refreshing.cancel()
        await items.aclose()
    return True


def _neutralise(cell: Any) -> Any:
    """Return a cell that no spreadsheet executes: an apostrophe goes before a text that begins as a formula does."""
    is_formula = isinstance(cell, str) and cell.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if is_formula else cell


def _format_item(item: BatchItem[Any]) -> list[Any]:
    if item.result is not None:
        return [item.run_id, "done", format_value(item.result.output), "", item.result.usage.cost_usd or ""]
    assert item.error is not None  # one of both is there
    status = "waiting" if isinstance(item.error, RunWaiting) else "failed"
    return [item.run_id, status, "", format_error(item.error), ""]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file with a column `prompt`, or of a text file with one prompt a line.

    Raises:
        UsageError: it cannot be read, has no such column, or no prompt.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            if path.suffix.lower() == ".csv":
                reader = csv.DictReader(file)
                if "prompt" not in (reader.fieldnames or ()):
                    raise UsageError(f"{path} has no column prompt: it has {', '.join(reader.fieldnames or ['none'])}")
                rows = [{name: value or "" for name, value in row.items() if name} for row in reader]
            else:
                rows = [{"prompt": line.strip()} for line in file]
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise UsageError(f"{path} cannot be read: {exc}") from None
    rows = [row for row in rows if row["prompt"]]
    if not rows:
        raise UsageError(f"{path} has no prompt")
    return rows


@take_options("query", QUERY_OPTIONS)
def results(
    query: RunQuery,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the outputs as CSV, the default.")] = False,
    as_json: JsonOption = False,
    store: StoreOption = "",
) -> None:
    """Print the outputs of runs as CSV, oldest first. --label batch=ID selects a batch."""
    if as_csv and as_json:
        raise UsageError("give either --csv or --json, not both")
    found = asyncio.run(_read_results(store, query))
    if as_json:
        print_json(found)
        return
    writer = csv.DictWriter(sys.stdout, ("prompt", *_COLUMNS))
    writer.writeheader()
    clean = sanitize if sys.stdout.isatty() else str
    for row in found:
        output = "" if row["output"] is None else format_value(row["output"])
        shown = row | {"output": output, "cost_usd": row["cost_usd"] or ""}
        writer.writerow({name: _neutralise(clean(str(value))) for name, value in shown.items()})


async def _read_results(store: str, query: RunQuery) -> list[dict[str, Any]]:
    """Return a row for each run, oldest first."""
    async with open_client(store) as client:
        page = await client.list(limit=_PAGE_SIZE, **query)
        runs = [*page.runs]
        while page.cursor is not None:
            page = await client.list(limit=_PAGE_SIZE, cursor=page.cursor, **query)
            runs += page.runs
        rows = []
        for run in reversed(runs):
            details = await client.get(run.run_id)
            result = (run.run_id, run.status, details.output, details.error or run.reason, run.usage.cost_usd)
            rows.append({"prompt": run.prompt, **dict(zip(_COLUMNS, result, strict=True))})
        return rows
