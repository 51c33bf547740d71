"""holdfast ls"""

import asyncio
from collections import deque
from typing import Annotated

import typer

from holdfast.checkpoint.record import RunFilter, RunStatus
from holdfast.cli import formatting
from holdfast.cli.errors import UsageError
from holdfast.cli.listing import RunSummary, summarize_run, utc_now
from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import Output, one_line, print_json
from holdfast.cli.stores import open_store

_STATUSES = [status.value for status in RunStatus if status is not RunStatus.REMOVED]


def _complete_status(incomplete: str) -> list[str]:
    return [status for status in _STATUSES if status.startswith(incomplete)]


def ls(
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help=f"Only runs with this status ({', '.join(_STATUSES)}). Repeatable.",
            autocompletion=_complete_status,
        ),
    ] = None,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = "",
    caller: Annotated[str, typer.Option("--caller", metavar="ID", help="Only runs of this caller.")] = "",
    parent: Annotated[str, typer.Option("--parent", metavar="RUN", help="Only child runs of this run.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=0, help="Only the newest N.")] = 0,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the runs of a store, oldest first.

    A run whose owner died is shown as interrupted.
    """
    unknown = sorted(set(status or []) - set(_STATUSES))
    if unknown:
        raise UsageError(f"unknown status {', '.join(unknown)}: --status takes {', '.join(_STATUSES)}")
    run_filter = RunFilter(agent_name=agent or None, caller_id=caller or None, parent_run_id=parent or None)
    runs = asyncio.run(_list_runs(store, run_filter, frozenset(status or _STATUSES), limit))
    if as_json:
        print_json(runs)
    else:
        _print_runs(Output(), runs)


async def _list_runs(store_url: str, run_filter: RunFilter, statuses: frozenset[str], limit: int) -> list[RunSummary]:
    async with open_store(store_url) as store:
        newest: deque[RunSummary] = deque(maxlen=limit or None)
        async for record in store.list_runs(run_filter):
            run = summarize_run(record)
            if run.status in statuses:
                newest.append(run)
        return list(newest)


def _print_runs(output: Output, runs: list[RunSummary]) -> None:
    if not runs:
        output.print_line("no runs")
        return
    now = utc_now()
    columns = ["RUN", "STATUS", "AGENT", "AGE", "STEPS", "TOKENS", "COST", "SIZE", "OWNER", "REASON"]
    rows = [
        [
            run.run_id,
            run.status,
            run.agent,
            formatting.duration(now - run.created_at),
            formatting.number(run.steps),
            formatting.number(run.tokens),
            formatting.cost(run.cost_usd),
            formatting.size(run.size),
            run.owner if run.owner and run.owner_alive else "",
            one_line(run.reason, 200),
        ]
        for run in runs
    ]
    # On a terminal, empty columns would take width from the others.
    optional = ("COST", "OWNER", "REASON") if output.console else ()
    shown = [at for at, name in enumerate(columns) if name not in optional or any(row[at] for row in rows)]
    output.print_table(
        [columns[at] for at in shown],
        [[row[at] for at in shown] for row in rows],
        right=("AGE", "STEPS", "TOKENS", "COST", "SIZE"),
    )
