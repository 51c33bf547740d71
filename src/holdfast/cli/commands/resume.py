"""holdfast resume"""

import asyncio
import sys
from functools import partial
from typing import Annotated

import typer

from holdfast.app import App
from holdfast.checkpoint.record import RunFilter, RunRecord
from holdfast.cli.errors import CommandError, UsageError
from holdfast.cli.loading import build_app, build_model_app, load_object
from holdfast.cli.options import CodeStoreOption, JsonOption, ModelOption, QuietOption, complete_run
from holdfast.cli.output import print_diagnostic
from holdfast.cli.progress import ProgressDisplay, ProgressListener
from holdfast.cli.runner import (
    CommandResult,
    collect_result,
    format_resume_command,
    print_result,
    report_attachment,
    run_app,
)
from holdfast.cli.stores import get_record


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
    store: CodeStoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Resume one interrupted, parked or failed run in this process.

    You name the code each time: a store never decides what is imported.
    """
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
    sys.exit(print_result(result, as_json_text=as_json))


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
        async for record in app.store.list_runs(RunFilter(interrupted=True))
        if record.agent_name in app.agents and record.parent_run_id is None
    ]
    if not found:
        raise CommandError(f"no run of {', '.join(sorted(app.agents))} is interrupted")
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise UsageError(f"{len(found)} runs are interrupted ({some}): name one, or resume all with holdfast recover")
    return found[0]
