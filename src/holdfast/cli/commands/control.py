"""Commands that change runs: cancel, resume, unpark, fork, rm, recover."""

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer

from holdfast.app import App
from holdfast.checkpoint.errors import RecordDecodeError, RunDamaged, RunNotFound, StoreClosed
from holdfast.checkpoint.record import RunFilter, RunRecord
from holdfast.checkpoint.store import RunStore, get_record, iter_runs
from holdfast.cli.listeners import ProgressDisplay, ProgressListener
from holdfast.cli.loading import build_app, build_model_app, load_agents, load_object
from holdfast.cli.many_runs import act_on_many, check_target
from holdfast.cli.opening import open_client, open_store
from holdfast.cli.options import (
    QUERY_OPTIONS,
    AppOption,
    ByOption,
    CodeArgument,
    CodeStoreOption,
    JsonOption,
    ModelOption,
    OptionalRunArgument,
    QuietOption,
    RunArgument,
    StoreOption,
    YesOption,
    complete_run,
    parse_resolutions,
    parse_results,
    take_options,
)
from holdfast.cli.output import CommandError, UsageError, print_diagnostic, print_json
from holdfast.cli.run_session import (
    CommandResult,
    collect_result,
    format_resume_command,
    print_result,
    report_attachment,
    report_force_quit,
    run_app,
)
from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.calls import NOT_EXECUTED
from holdfast.core.run.info import check_run_id
from holdfast.runtime.operations.forking import Fork
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_views import RunQuery
from holdfast.runtime.worker import RecoveryReport, RecoveryStatus


@take_options("query", QUERY_OPTIONS)
def cancel(
    run: OptionalRunArgument = "",
    *,
    query: RunQuery,
    yes: YesOption = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Cancel a run and its child runs, or ask the worker that executes it to do so.

    With a filter: every matching run that has not ended, after a confirmation. Exits with 1 if a run was not cancelled.
    """
    check_target(run, query)
    if query:
        act_on_many("cancel", store, query, yes=yes, as_json=as_json)
    owner = asyncio.run(_cancel(store, run))
    if as_json:
        print_json({"run_id": run, "status": "cancelling" if owner else "cancelled", "owner": owner})
    elif owner:
        print(f"{owner} was asked to cancel run {run}")
    else:
        print(f"run {run} is cancelled")


async def _cancel(store_url: str, run_id: str) -> str | None:
    """Return the live worker that has to cancel the run; `None` if the run is cancelled."""
    async with open_client(store_url) as client:
        await client.cancel(run_id)
        try:
            record = await get_record(client.open_store, run_id)
        except RunNotFound:
            return None
        return None if record.is_terminal else record.owner


def fork(
    run: RunArgument,
    at: Annotated[int, typer.Option("--at", metavar="STEP", min=1, help="The step after which the new run starts.")],
    edited: Annotated[
        str | None,
        typer.Option(
            "--edit",
            metavar="TEXT",
            help="Replaces the prompt, with --at 1, or the messages that RUN got before STEP, which is run again.",
        ),
    ] = None,
    results: Annotated[
        list[str] | None,
        typer.Option(
            "--result",
            metavar="CALL=RESULT",
            help="Replaces the result of a call of STEP, as JSON or text. Repeatable. `show` lists the calls.",
        ),
    ] = None,
    run_id: Annotated[str, typer.Option("--run-id", metavar="ID", help="The new run's id.")] = "",
    app: AppOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Queue a new run that continues RUN from a finished step.

    With --edit or --result it continues from a changed history. Prints the id of the new run. RUN itself does not
    change.
    """
    new_id = check_run_id(run_id) if run_id else None
    wanted = Fork(at_step=at, new_id=new_id, edited=edited, results=parse_results(results))
    new_id = asyncio.run(_fork(store, load_agents(app), run, wanted))
    if as_json:
        print_json({"run_id": new_id, "status": "queued", "forked_from": run, "at": at})
    else:
        print(new_id)


async def _fork(store_url: str, agents: Mapping[str, AgentSource], run_id: str, fork: Fork) -> str:
    async with open_client(store_url, agents) as client:
        try:
            return await client.fork(run_id, fork.at_step, edited=fork.edited, results=fork.results, new_id=fork.new_id)
        except RecordDecodeError as exc:
            raise CommandError(f"{exc}. If its agent does not use the native loop, name it with --app") from exc


def recover(
    code: CodeArgument, quiet: QuietOption = False, store: CodeStoreOption = "", as_json: JsonOption = False
) -> None:
    """Resume every interrupted run of these agents, in one pass.

    Exits with 1 if a run failed or could not be read.
    """
    listener = ProgressListener() if quiet else ProgressDisplay(many=True)
    app = build_app(load_object(code), code, store=store, create=False, listener=listener)
    delayed: list[str] = []

    async def work() -> RecoveryReport:
        report = await app.recover()
        with suppress(StoreClosed):  # a signal ended the pass
            delayed.extend(await _list_delayed(app))
        return report

    with listener:
        report = asyncio.run(run_app(app, listener, work, on_force_quit=report_force_quit))
    if as_json:
        runs = [
            {"run_id": run_id, "status": status, "reason": report.reasons.get(run_id, "")}
            for run_id, status in report.statuses.items()
        ]
        print_json({"runs": runs, "delayed": delayed})
    else:
        print(report)
    if delayed:
        print_diagnostic(f"{len(delayed)} runs are delayed by their backoff: {', '.join(delayed[:5])}")
    sys.exit(1 if report.runs_with(RecoveryStatus.FAILED) or report.runs_with(RecoveryStatus.DAMAGED) else 0)


async def _list_delayed(app: App) -> list[str]:
    """Return the runs that this pass skipped because of their backoff after repeated crashes."""
    if app.store is None:
        return []
    now = utc_now()
    return [
        record.run_id
        async for record in iter_runs(app.store, RunFilter(interrupted=True))
        if record.agent_name in app.agents and record.not_before > now
    ]


@take_options("query", QUERY_OPTIONS)
def resume(
    code: Annotated[
        str,
        typer.Argument(metavar="MODULE:AGENT", help="The agent or its App. Omit it with --model.", show_default=False),
    ] = "",
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="The run's id. Default: the only interrupted run.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = "",
    model: ModelOption = "",
    quiet: QuietOption = False,
    *,
    query: RunQuery,
    yes: YesOption = False,
    store: CodeStoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Resume one interrupted, parked or failed run in this process.

    You name the code each time: a store never decides what is imported. With a filter and no code: hand every matching
    failed, cancelled or parked run back to the workers, after a confirmation.
    """
    if query:
        check_target(run or code or model, query)
        act_on_many("resume", store, query, yes=yes, as_json=as_json)
    if model:
        code, run = "", _get_run_argument(code, run)
    listener = ProgressListener() if quiet else ProgressDisplay()
    if model:
        app = build_model_app(model, store=store, create=False, listener=listener)
    else:
        if ":" not in code:
            raise UsageError(f"name the agent: holdfast resume MODULE:AGENT {code or '[RUN]'}")
        app = build_app(load_object(code), code, store=store, create=False, listener=listener)
    target = ["--model", model] if model else [code]

    async def work() -> CommandResult:
        nonlocal run
        run = run or await _find_only_interrupted(app)
        record = await _get_record(app, run)
        listener.print_status(f"run {run} of {record.agent_name}", "bold")
        report_attachment(record, listener)
        resume_command = format_resume_command(target, run, store)
        return await collect_result(app, run, partial(app.resume, run), resume_command, store)

    def on_force_quit() -> None:
        print_diagnostic(f"stopped immediately. Resume with: {format_resume_command(target, run, store)}")

    with listener:
        result = asyncio.run(run_app(app, listener, work, on_force_quit=on_force_quit))
    sys.exit(print_result(result, as_json_text=as_json, stop_signal=listener.stop_signal))


def _get_run_argument(code: str, run: str) -> str:
    """Return the run id, which is the first argument with --model."""
    if run:
        raise UsageError("give either MODULE:AGENT or --model, not both")
    return code


async def _get_record(app: App, run_id: str) -> RunRecord:
    """Return the record of the run. Raises unless it exists and the App has its agent."""
    if app.store is None:
        raise CommandError("this App has no store: there is nothing to resume")
    record = await get_record(app.store, run_id)
    app.agent(record.agent_name)
    return record


async def _find_only_interrupted(app: App) -> str:
    if app.store is None:
        raise CommandError("this App has no store: there is nothing to resume")
    found = [
        record.run_id
        async for record in iter_runs(app.store, RunFilter(interrupted=True))
        if record.agent_name in app.agents and record.parent_run_id is None
    ]
    if not found:
        raise CommandError(f"no run of {', '.join(sorted(app.agents))} is interrupted")
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise UsageError(f"{len(found)} runs are interrupted ({some}): name one, or resume all with holdfast recover")
    return found[0]


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Run ids.", autocompletion=complete_run, show_default=False),
    ],
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Also remove damaged runs and runs that are not terminal.")
    ] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Remove runs and their child runs from the store.

    A run that a live worker executes is never removed: cancel it first.
    """
    asyncio.run(_remove(store, runs, force=force))
    if as_json:
        print_json({"removed": runs})
    else:
        for run in runs:
            print(f"run {run} is removed")


async def _remove(store_url: str, runs: list[str], *, force: bool) -> None:
    async with open_store(store_url) as store:
        for run_id in runs:
            await _check_removable(store, run_id, force=force)
        for run_id in runs:
            await store.remove(run_id)


async def _check_removable(store: RunStore, run_id: str, *, force: bool) -> None:
    try:
        record = await get_record(store, run_id)
    except RunDamaged as exc:
        if force:
            return
        raise CommandError(f"{exc}. Remove it with --force") from exc
    if not record.is_terminal and not force:
        raise CommandError(f"run {run_id} is {record.current_status} and could be resumed: remove it with --force")


@take_options("query", QUERY_OPTIONS)
def unpark(
    run: OptionalRunArgument = "",
    resolve: Annotated[
        list[str] | None,
        typer.Option(
            "--resolve",
            metavar="CALL=RESULT",
            help="The result of a call in doubt, as JSON or text. Repeatable. `show` lists the calls.",
        ),
    ] = None,
    make: Annotated[
        list[str] | None,
        typer.Option("--make", metavar="CALL", help="A call in doubt that did not happen: it is made now. Repeatable."),
    ] = None,
    by: ByOption = "",
    app: AppOption = "",
    *,
    query: RunQuery,
    yes: YesOption = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Release a parked run, or with a filter every matching parked run, after a confirmation.

    Workers and recovery can then resume it. For other calls in doubt, the model gets a result that says that the
    outcome is unknown.
    """
    check_target(run, query)
    if query:
        if resolve or make:
            raise UsageError("--resolve and --make are for the calls of one run: name it")
        act_on_many("unpark", store, query, yes=yes, as_json=as_json, by=by, via="cli")
    resolutions = {**parse_resolutions(resolve), **dict.fromkeys(make or (), NOT_EXECUTED)}
    asyncio.run(_unpark(store, load_agents(app), run, resolutions, by))
    if as_json:
        print_json({"run_id": run, "status": "interrupted"})
    else:
        print(f"run {run} is interrupted: a worker or holdfast resume continues it")


async def _unpark(
    store_url: str, agents: Mapping[str, AgentSource], run_id: str, resolutions: dict[str, Any], by: str
) -> None:
    async with open_client(store_url, agents) as client:
        try:
            await client.unpark(run_id, resolutions, by=by, via="cli")
        except RecordDecodeError as exc:
            raise CommandError(f"{exc}. If its agent does not use the native loop, name it with --app") from exc
