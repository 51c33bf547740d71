"""One action on all runs that the options of a command find: a preview, a question, and what was refused."""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from holdfast.cli.opening import open_client
from holdfast.cli.output import CommandError, UsageError, print_diagnostic, print_json, sanitize
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.bulk_actions import BULK_ACTIONS, BulkAction
from holdfast.runtime.operations.run_client import RunClient
from holdfast.runtime.reading.formatting import format_count, format_number
from holdfast.runtime.reading.run_summary import RunSummary, describe_reason
from holdfast.runtime.reading.run_views import RunQuery

_PAGE_SIZE = 500
_SHOWN_GROUPS = 10


def check_target(run: str, query: RunQuery) -> None:
    """Refuse a command that names both a run and a filter, or neither."""
    if run and query:
        raise UsageError(f"name the run {run}, or give a filter ({', '.join(query)}), not both")
    if not run and not query:
        raise UsageError("name a run, or give a filter such as --agent NAME or --label NAME=VALUE")


def act_on_many(name: str, store: str, query: RunQuery, *, yes: bool, as_json: bool, **options: Any) -> None:
    """Do it to every run that fits, after a question. Exits with 1 if a run refused it.

    Args:
        options: further arguments of the action.
    """
    refused = asyncio.run(_act(BULK_ACTIONS[name], store, query, options, yes=yes, as_json=as_json))
    sys.exit(1 if refused else 0)


async def _act(
    action: BulkAction, store: str, query: RunQuery, options: Mapping[str, Any], *, yes: bool, as_json: bool
) -> int:
    async with open_client(store) as client:
        runs = await _find_runs(client, action, query)
        if runs and not yes:
            _ask(action, runs)
        refused: dict[str, str] = {}
        for run in runs:
            try:
                await action.apply(client, run.run_id, **options)
            except HoldfastError as exc:  # it has changed since it was listed
                refused[run.run_id] = str(exc)
    done = [run.run_id for run in runs if run.run_id not in refused]
    if as_json:
        print_json({"done": done, "refused": refused})
    else:
        print(f"{format_count(len(done), 'run')} {action.past}" if runs else "no matching run")
        for text in refused.values():
            print_diagnostic(f"refused: {text}")
    return len(refused)


async def _find_runs(client: RunClient, action: BulkAction, query: RunQuery) -> list[RunSummary]:
    """Return the runs that fit and have a status that the action takes, oldest first."""
    found: list[RunSummary] = []
    cursor: str | None = None
    while True:
        page = await client.list(limit=_PAGE_SIZE, cursor=cursor, **query)
        found += [run for run in page.runs if run.status in action.statuses]
        cursor = page.cursor
        if cursor is None:
            return found[::-1]


def _ask(action: BulkAction, runs: Sequence[RunSummary]) -> None:
    """Show how many runs it is about, by agent and reason. Raises unless the person agrees."""
    groups = Counter((run.agent, run.status.value, describe_reason(run)) for run in runs)
    for (agent, status, reason), count in groups.most_common(_SHOWN_GROUPS):
        detail = f": {sanitize(reason)}" if reason else ""
        print_diagnostic(f"{format_number(count):>8}  {sanitize(agent)}, {status}{detail}")
    if len(groups) > _SHOWN_GROUPS:
        print_diagnostic(f"          and {format_count(len(groups) - _SHOWN_GROUPS, 'more group')}")
    question = f"{action.verb} {format_count(len(runs), 'run')}?"
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Add --yes to do it")
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed")
