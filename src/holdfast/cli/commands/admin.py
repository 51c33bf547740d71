"""Commands about a store: doctor, migrate, grants, explain, limits."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from holdfast.app import App
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import LimitUsage
from holdfast.cli.doctor import SAMPLE_SIZE, Doctor, Finding, ReentryOptions, load_explanations
from holdfast.cli.loading import load_agents, load_object
from holdfast.cli.opening import make_store, open_store, report_slow_open, resolve_store_url
from holdfast.cli.options import JsonOption, StoreOption
from holdfast.cli.output import STYLES, CommandError, Output, UsageError, format_error, print_json
from holdfast.config import ConcurrencyLimit
from holdfast.core.agents.agent import AgentSource
from holdfast.db.urls import POSTGRES_SCHEMES, redact_url
from holdfast.runtime.reading.reentries import DEFAULT_LIMIT

if TYPE_CHECKING:
    from holdfast.cli.opening import TablesVersion


def doctor(
    code: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Also check that this code can resume the runs.", show_default=False),
    ] = "",
    all_runs: Annotated[
        bool, typer.Option("--all", help="Read the journals of all runs, not a sample of queued and ended ones.")
    ] = False,
    reenter: Annotated[
        bool,
        typer.Option(
            "--reenter", help="Also call the workflows of stored runs, up to their first call without a result."
        ),
    ] = False,
    agent: Annotated[
        str, typer.Option("--agent", metavar="NAME", help="Re-enter only the runs of this workflow.")
    ] = "",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="Re-enter at most this many runs, the oldest first.", min=1)
    ] = DEFAULT_LIMIT,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Check a store and its runs.

    Changes nothing. Exits with 1 if something is wrong. With MODULE:APP it is a preflight check before a deploy: can
    this code load and resume every stored run? It then checks the App's own store, unless --store names another.
    """
    if reenter and not code:
        raise UsageError("--reenter needs the code whose workflows are called: give MODULE:APP")
    reentry = ReentryOptions(agent=agent or None, limit=limit) if reenter else None
    found = load_object(code) if code else None
    own = found.store if isinstance(found, App) and not store else None
    where = "the App's own store" if own is not None else redact_url(resolve_store_url(store))
    agents = load_agents(code) if code else None
    findings = asyncio.run(_run_checks(own, store, where, agents, all_runs, reentry))
    if as_json:
        print_json(findings)
    else:
        output = Output()
        for finding in findings:
            output.print_line(f"{finding.level:<8} {finding.check}: {finding.detail}", STYLES[finding.level])
    sys.exit(1 if any(finding.level == "wrong" for finding in findings) else 0)


async def _run_checks(
    own: RunStore | None,
    store_url: str,
    where: str,
    agents: Mapping[str, AgentSource] | None,
    all_runs: bool,
    reentry: ReentryOptions | None,
) -> list[Finding]:
    try:
        store = own if own is not None else make_store(store_url)
        with report_slow_open():
            await store.open()
    except (CommandError, CheckpointError) as exc:
        return [Finding(check="store", level="wrong", detail=format_error(exc))]
    try:
        return [
            Finding(check="store", level="ok", detail=f"{where} can be opened"),
            *await Doctor(store, agents, sample=None if all_runs else SAMPLE_SIZE, reentry=reentry).run(),
        ]
    finally:
        await store.close()


def explain(
    code: Annotated[str, typer.Argument(metavar="CODE", help="The code at the end of the message, such as RunBusy.")],
    as_json: JsonOption = False,
) -> None:
    """Explain an error: its cause, and what to do."""
    explanations = load_explanations()
    names = {name.lower(): name for name in explanations}
    name = names.get(code.strip("[]").lower())
    if name is None:
        similar = get_close_matches(code, explanations, cutoff=0.5)
        hint = f"did you mean {', '.join(similar)}?" if similar else f"known codes: {', '.join(explanations)}"
        raise CommandError(f"there is no error {code!r}: {hint}")
    if as_json:
        print_json({"code": name, "explanation": explanations[name]})
    else:
        print(explanations[name])


def grants(
    worker: Annotated[
        str, typer.Option("--worker", metavar="ROLE", help="A role that executes, submits and answers runs.")
    ] = "",
    reader: Annotated[str, typer.Option("--reader", metavar="ROLE", help="A role that only reads.")] = "",
    store: StoreOption = "",
) -> None:
    """Print the SQL that gives PostgreSQL roles the rights they need, and no more.

    Execute it as the owner of the tables, who runs `holdfast migrate`. It also covers tables that a later migration
    creates. Connects to nothing.
    """
    if not worker and not reader:
        raise UsageError("name a role: --worker ROLE, --reader ROLE, or both")
    url = resolve_store_url(store)
    if url.partition(":")[0] not in POSTGRES_SCHEMES:
        raise CommandError(f"{redact_url(url)} has no roles: they are for PostgreSQL")
    from holdfast.db.postgres_tables import make_grants
    from holdfast.db.postgres_url import parse_schema

    for statement in make_grants(parse_schema(url), worker=worker, reader=reader):
        print(f"{statement};")


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

    Runs in progress continue. The limit stays until you remove it, and overrides those of the workers' Apps.
    """
    limit = _make_limit(agent, key, max_runs)
    _run(store, lambda opened: opened.set_limit(limit.kind, limit.name, limit.max_runs))
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
    """Remove a limit. A limit in the code of an App returns when the App opens."""
    limit = _make_limit(agent, key, 0)
    if not _run(store, lambda opened: opened.set_limit(limit.kind, limit.name, None)):
        raise CommandError(f"there is no limit for {limit.kind} {limit.name}: holdfast limits list shows them")
    if as_json:
        print_json({"removed": {limit.kind: limit.name}})
    else:
        print(f"the limit for {limit.kind} {limit.name} is removed")


def _make_limit(agent: str, key: str, max_runs: int) -> ConcurrencyLimit:
    if bool(agent) == bool(key):
        raise CommandError("a limit is for one agent or one key: give --agent or --key")
    return ConcurrencyLimit(agent=agent or None, key=key or None, max_runs=max_runs)


def _run(store_url: str, work: Callable[[RunStore], Awaitable[T]]) -> T:
    async def main() -> T:
        async with open_store(store_url) as store:
            return await work(store)

    return asyncio.run(main())


def _describe(usage: LimitUsage) -> dict[str, str | int]:
    limit = usage.limit
    return {limit.kind: limit.name, "running": usage.running, "max_runs": limit.max_runs, "set_by": _name_origin(usage)}


def _name_origin(usage: LimitUsage) -> str:
    return "app" if usage.is_default else "operator"


LIMIT_COMMANDS: dict[str, Callable[..., None]] = {"set": set_, "list": list_, "remove": remove}


def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing. Exit with 1 if a migration is needed.")
    ] = False,
    langgraph: Annotated[
        bool, typer.Option("--langgraph", help="Also the tables of HoldfastSaver, LangGraph's checkpointer.")
    ] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Create or migrate the tables of a store and of all batteries.

    An App does this when it is opened, if its database user may. Run it before a deploy where workers have a user
    without that right. Workers of the previous version continue meanwhile.
    """
    pending = [each for each in asyncio.run(_migrate(store, check, langgraph)) if each.found != each.known]
    if as_json:
        print_json(pending)
    else:
        verb = "needs a migration" if check else "migrated"
        lines = [f"{each.tables}: {verb} from version {each.found} to {each.known}" for each in pending]
        for line in lines or ["all tables are up to date"]:
            Output().print_line(line)
    sys.exit(1 if check and pending else 0)


async def _migrate(store_url: str, check: bool, langgraph: bool) -> "list[TablesVersion]":
    from holdfast.cli.opening import migrate_all, read_versions

    with report_slow_open():
        versions = await read_versions(store_url, langgraph=langgraph)
        if not check:
            await migrate_all(store_url, langgraph=langgraph)
    return versions
