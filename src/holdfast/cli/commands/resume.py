"""holdfast resume"""

import asyncio
import sys
from typing import Annotated

import typer

from holdfast.app import App
from holdfast.checkpoint.record import RunFilter
from holdfast.cli.code import app_of, app_of_model, find
from holdfast.cli.completion import complete_run
from holdfast.cli.driving import drive
from holdfast.cli.ending import Ending, ending_of, print_ending, resume_command, unpark_command
from holdfast.cli.errors import CommandError, WrongUsage
from holdfast.cli.options import CodeStoreOption, JsonOption, ModelOption, QuietOption
from holdfast.cli.output import talk
from holdfast.cli.progress import Display, Watcher
from holdfast.cli.stores import record_of


def resume(
    code: Annotated[
        str,
        typer.Argument(metavar="MODULE:AGENT", help="The agent or its App. Left out with --model.", show_default=False),
    ] = "",
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="The run's id. Without one: the only interrupted run there is.",
            autocompletion=complete_run,
            show_default=False,
        ),
    ] = "",
    model: ModelOption = "",
    quiet: QuietOption = False,
    store: CodeStoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Go on with one interrupted, parked or failed run, here and now.

    The code is named by you each time: a store never decides what is imported.
    """
    if model:
        code, run = "", _only(code, run)
    watcher = Watcher() if quiet else Display()
    if model:
        app = app_of_model(model, store=store, create=False, delivery=watcher)
    else:
        if ":" not in code:
            raise WrongUsage(f"name the code to go on with: holdfast resume MODULE:AGENT {code or '[RUN]'}")
        app = app_of(find(code), code, store=store, create=False, delivery=watcher)
    target = ["--model", model] if model else [code]
    driven = [run]

    async def work() -> Ending:
        run_id = driven[0] = run or await _only_interrupted(app)
        await _check_agent(app, run_id)
        watcher.say(f"run {run_id}", "bold")
        return await ending_of(
            app,
            run_id,
            lambda: app.resume(run_id),
            resume_command(target, run_id, store),
            unpark_command(run_id, store),
        )

    def stopped_at_once() -> None:
        talk(f"stopped at once. Go on with: {resume_command(target, driven[0], store)}")

    with watcher:
        ending = asyncio.run(drive(app, watcher, work, stopped_at_once=stopped_at_once))
    sys.exit(print_ending(ending, as_json_text=as_json))


def _only(code: str, run: str) -> str:
    """With --model the first argument is the run."""
    if run:
        raise WrongUsage("give either MODULE:AGENT or --model, not both")
    return code


async def _check_agent(app: App, run_id: str) -> None:
    """Raise unless the run is there and its agent is known."""
    if app.store is None:
        raise CommandError("this App has no store: there is nothing to resume")
    app.agent((await record_of(app.store, run_id)).agent_name)


async def _only_interrupted(app: App) -> str:
    if app.store is None:
        raise CommandError("this App has no store: there is nothing to resume")
    found = [
        record.run_id
        async for record in app.store.records(RunFilter(interrupted=True))
        if record.agent_name in app.agents and record.parent_run_id is None
    ]
    if not found:
        raise CommandError(f"no run of {', '.join(sorted(app.agents))} is interrupted")
    if len(found) > 1:
        some = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
        raise WrongUsage(f"{len(found)} runs are interrupted ({some}): name one, or go on with all by holdfast recover")
    return found[0]
