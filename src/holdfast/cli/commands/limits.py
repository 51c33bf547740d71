"""holdfast limits"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from holdfast.checkpoint.limits import ConcurrencyLimit, LimitUsage
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.errors import CommandError
from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import Output, print_json
from holdfast.cli.stores import open_client

T = TypeVar("T")

AgentOption = Annotated[str, typer.Option("--agent", metavar="NAME", help="The agent whose runs are limited.")]
KeyOption = Annotated[str, typer.Option("--key", metavar="KEY", help="The key whose runs are limited.")]


def set_(
    max_runs: Annotated[
        int, typer.Argument(metavar="N", help="Runs that may execute at the same time; 0 pauses them.", min=0)
    ],
    agent: AgentOption = "",
    key: KeyOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Limit the runs of an agent or a key that execute at the same time, for all workers, from now on.

    Runs under way continue. The limit stays until it is removed, whatever the Apps of the workers say.
    """
    limit = _make_limit(agent, key, max_runs)
    _run(store, lambda opened: opened.set_limit(limit))
    if as_json:
        print_json({limit.kind: limit.name, "max_runs": max_runs})
    else:
        print(f"{limit.kind} {limit.name}: limited to {max_runs} at the same time")


def list_(store: StoreOption = "", as_json: JsonOption = False) -> None:
    """List the limits, and how many runs count towards each."""
    usage = _run(store, lambda opened: opened.list_limits())
    if as_json:
        print_json([_describe(each) for each in usage])
        return
    rows = [
        [each.limit.kind, each.limit.name, str(each.running), str(each.limit.max_runs), _name_origin(each)]
        for each in usage
    ]
    Output().print_table(["FOR", "NAME", "RUNNING", "LIMIT", "SET BY"], rows)


def remove(agent: AgentOption = "", key: KeyOption = "", store: StoreOption = "", as_json: JsonOption = False) -> None:
    """Remove a limit. One that an App sets comes back when such an App opens."""
    limit = _make_limit(agent, key, 0)
    if not _run(store, lambda opened: opened.remove_limit(limit.kind, limit.name)):
        raise CommandError(f"there is no limit for {limit.kind} {limit.name}: holdfast limits list shows them")
    if as_json:
        print_json({"removed": {limit.kind: limit.name}})
    else:
        print(f"the limit for {limit.kind} {limit.name} is removed")


def _make_limit(agent: str, key: str, max_runs: int) -> ConcurrencyLimit:
    if bool(agent) == bool(key):
        raise CommandError("a limit is for one agent or one key: give --agent or --key")
    return ConcurrencyLimit(agent=agent or None, key=key or None, max_runs=max_runs)


def _run(store_url: str, work: Callable[[CheckpointStore], Awaitable[T]]) -> T:
    async def main() -> T:
        async with open_client(store_url) as (_, store):
            return await work(store)

    return asyncio.run(main())


def _describe(usage: LimitUsage) -> dict[str, str | int]:
    limit = usage.limit
    return {limit.kind: limit.name, "running": usage.running, "max_runs": limit.max_runs, "set_by": _name_origin(usage)}


def _name_origin(usage: LimitUsage) -> str:
    return "app" if usage.is_default else "operator"


LIMIT_COMMANDS: dict[str, Callable[..., None]] = {"set": set_, "list": list_, "remove": remove}
