"""Commands that list runs: ls and export."""

import asyncio
import base64
from typing import Annotated, Any

import msgspec
import typer

from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.record import StoredRun
from holdfast.cli.opening import open_store
from holdfast.cli.options import QUERY_OPTIONS, JsonOption, RunArgument, StoreOption, take_options
from holdfast.cli.output import Output, one_line, print_diagnostic, print_json, print_json_line
from holdfast.core.json_value import lower_durations
from holdfast.runtime.reading import formatting
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import RunSummary, summarize_run
from holdfast.runtime.reading.run_views import RunList, RunQuery, list_runs


def export(run: RunArgument, store: StoreOption = "") -> None:
    """Write a run to stdout as JSON lines.

    The first line is the run's record, the others are all entries of its journal. Needs no code of agents.
    """
    stored = asyncio.run(_load(store, run))
    print_json_line({"kind": "run", **lower_durations(summarize_run(stored.record))})
    for entry in stored.entries:
        print_json_line({"kind": entry.kind, "seq": entry.seq, **_encode_body(entry)})


async def _load(store_url: str, run_id: str) -> StoredRun:
    async with open_store(store_url) as store:
        return await store.load(run_id)


def _encode_body(entry: Entry) -> dict[str, Any]:
    try:
        # The original bytes: a decoded value could change numbers and the order of keys.
        msgspec.json.decode(entry.body)
        return {"body": msgspec.Raw(entry.body)}
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {"base64": base64.b64encode(entry.body).decode()}


#: Runs read at once for `--all`.
_PAGE_SIZE = 1000

#: A narrow terminal folds the lines instead of cutting the details shorter.
_MIN_DETAILS_LENGTH = 30


@take_options("query", QUERY_OPTIONS)
def ls(
    query: RunQuery,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Only the newest N.")] = 50,
    list_all: Annotated[bool, typer.Option("--all", help="All runs, without a limit.")] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the newest runs of a store, newest first.

    A run whose owner died is shown as interrupted.
    """
    found = asyncio.run(_list_all(store, query) if list_all else _list_newest(store, query, limit))
    if as_json:
        print_json(found)
    else:
        _print_runs(Output(), found.runs)
    if found.cursor is not None:
        print_diagnostic(f"there are more than these {len(found.runs)} runs: use --limit N, or --all for all of them")


async def _list_newest(store_url: str, query: RunQuery, limit: int) -> RunList:
    async with open_store(store_url) as store:
        return await list_runs(store, limit=limit, **query)


async def _list_all(store_url: str, query: RunQuery) -> RunList:
    async with open_store(store_url) as store:
        page = await list_runs(store, limit=_PAGE_SIZE, **query)
        runs = [*page.runs]
        while page.cursor is not None:
            page = await list_runs(store, limit=_PAGE_SIZE, cursor=page.cursor, **query)
            runs += page.runs
        return RunList(runs=tuple(runs))


def _print_runs(output: Output, runs: tuple[RunSummary, ...]) -> None:
    if not runs:
        output.print_line("no runs")
        return
    now = utc_now()
    columns = ["RUN", "STATUS", "AGENT", "AGE", "STEPS", "TOKENS", "COST", "SIZE", "DETAILS"]
    rows = [
        [
            run.run_id,
            run.status,
            run.agent,
            formatting.format_duration(now - run.created_at),
            formatting.format_number(run.steps),
            formatting.format_number(run.usage.total_tokens),
            formatting.format_cost(run.usage.cost_usd) if run.usage.cost_usd else "",
            formatting.format_size(run.size),
            one_line(run.description, 200),
        ]
        for run in runs
    ]
    # On a terminal, an empty column would take width from the others.
    optional = ("COST",) if output.console else ()
    shown = [at for at, name in enumerate(columns) if name not in optional or any(row[at] for row in rows)]
    columns, rows = [columns[at] for at in shown], [[row[at] for at in shown] for row in rows]
    _cut_last_column(columns, rows, output.width)
    output.print_table(columns, rows, right=("AGE", "STEPS", "TOKENS", "COST", "SIZE"))


def _cut_last_column(columns: list[str], rows: list[list[str]], width: int) -> None:
    """Cut the texts of the last column so that each run is one line. `show` prints them whole."""
    taken = sum(max(len(column), *(len(row[at]) for row in rows)) + 2 for at, column in enumerate(columns[:-1]))
    for row in rows:
        row[-1] = one_line(row[-1], max(_MIN_DETAILS_LENGTH, width - taken))
