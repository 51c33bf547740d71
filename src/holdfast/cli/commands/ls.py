"""holdfast ls"""

import asyncio
from collections import deque
from typing import Annotated

import typer

from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import RunFilter
from holdfast.cli import amounts
from holdfast.cli.errors import WrongUsage
from holdfast.cli.listing import Listed, listed, now
from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import Paper, one_of, print_json
from holdfast.cli.stores import opened

_STATES = [status.value for status in Status if status is not Status.REMOVED]


def ls(
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            metavar="STATE",
            help=f"Only runs in this state ({', '.join(_STATES)}); may be repeated.",
            autocompletion=lambda incomplete: [state for state in _STATES if state.startswith(incomplete)],
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
    unknown = sorted(set(status or []) - set(_STATES))
    if unknown:
        raise WrongUsage(f"no run is ever {', '.join(unknown)}: --status takes {', '.join(_STATES)}")
    wanted = RunFilter(agent_name=agent or None, caller_id=caller or None, parent_run_id=parent or None)
    runs = asyncio.run(_find(store, wanted, frozenset(status or _STATES), limit))
    if as_json:
        print_json(runs)
    else:
        _print(Paper(), runs)


async def _find(store_url: str, wanted: RunFilter, states: frozenset[str], limit: int) -> list[Listed]:
    async with opened(store_url) as store:
        newest: deque[Listed] = deque(maxlen=limit or None)
        async for record in store.records(wanted):
            run = listed(record)
            if run.status in states:
                newest.append(run)
        return list(newest)


def _print(paper: Paper, runs: list[Listed]) -> None:
    if not runs:
        paper.line("no runs")
        return
    at = now()
    columns = ["RUN", "STATE", "AGENT", "AGE", "STEPS", "TOKENS", "COST", "SIZE", "OWNER", "WHY"]
    rows = [
        [
            run.run_id,
            run.status,
            run.agent,
            amounts.duration(at - run.created_at),
            amounts.number(run.steps),
            amounts.number(run.tokens),
            amounts.cost(run.cost_usd),
            amounts.size(run.size),
            run.owner if run.owner and run.owner_alive else "",
            one_of(run.reason, 200),
        ]
        for run in runs
    ]
    # Most stores have no prices and no reasons to show: on a terminal there is room for the rest then.
    optional = ("COST", "OWNER", "WHY") if paper.console else ()
    kept = [place for place, name in enumerate(columns) if name not in optional or any(row[place] for row in rows)]
    paper.table(
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        right=("AGE", "STEPS", "TOKENS", "COST", "SIZE"),
    )
