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


def ls(
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATE",
            help=f"Only runs in this state ({', '.join(_STATUSES)}); may be repeated.",
            autocompletion=lambda incomplete: [state for state in _STATUSES if state.startswith(incomplete)],
        ),
    ] = None,
    agent: Annotated[str, typer.Option("--agent", metavar="NAME", help="Only runs of this agent.")] = "",
    caller: Annotated[str, typer.Option("--caller", metavar="ID", help="Only runs of this caller.")] = "",
    parent: Annotated[str, typer.Option("--parent", metavar="RUN", help="Only runs that this run started.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=0, help="Only the newest N.")] = 0,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """List the runs of a store, oldest first.

    A run whose owner died is shown as interrupted, whatever its owner last wrote about it.
    """
    unknown = sorted(set(status or []) - set(_STATUSES))
    if unknown:
        raise UsageError(f"no run is ever {', '.join(unknown)}: --status takes {', '.join(_STATUSES)}")
    wanted = RunFilter(agent_name=agent or None, caller_id=caller or None, parent_run_id=parent or None)
    runs = asyncio.run(_list_runs(store, wanted, frozenset(status or _STATUSES), limit))
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
    at = utc_now()
    columns = ["RUN", "STATE", "AGENT", "AGE", "STEPS", "TOKENS", "COST", "SIZE", "OWNER", "WHY"]
    rows = [
        [
            run.run_id,
            run.status,
            run.agent,
            formatting.duration(at - run.created_at),
            formatting.number(run.steps),
            formatting.number(run.tokens),
            formatting.cost(run.cost_usd),
            formatting.size(run.size),
            run.owner if run.owner and run.owner_alive else "",
            one_line(run.reason, 200),
        ]
        for run in runs
    ]
    # Most stores have no prices and no reasons to show: on a terminal there is room for the rest then.
    optional = ("COST", "OWNER", "WHY") if output.console else ()
    kept = [place for place, name in enumerate(columns) if name not in optional or any(row[place] for row in rows)]
    output.print_table(
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        right=("AGE", "STEPS", "TOKENS", "COST", "SIZE"),
    )
