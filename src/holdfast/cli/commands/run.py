"""holdfast run"""

import asyncio
import sys
from functools import partial
from typing import Annotated

import typer

from holdfast.cli.code import agent_name, app_of, app_of_model, find
from holdfast.cli.driving import drive
from holdfast.cli.ending import Ending, ending_of, print_ending, resume_command, unpark_command
from holdfast.cli.errors import WrongUsage
from holdfast.cli.options import AgentOption, CodeStoreOption, JsonOption, LabelOption, ModelOption, QuietOption
from holdfast.cli.output import talk
from holdfast.cli.progress import Display, Watcher
from holdfast.cli.words import labels_of, prompt_of
from holdfast.run.info import check_run_id, new_run_id


def run(
    code: Annotated[
        str,
        typer.Argument(metavar="MODULE:AGENT", help="An agent or an App. Left out with --model.", show_default=False),
    ] = "",
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What is asked; - reads it from stdin.", show_default=False)
    ] = "",
    model: ModelOption = "",
    agent: AgentOption = "",
    run_id: Annotated[
        str, typer.Option("--run-id", metavar="ID", help="The run's id. If there is such a run, it goes on.")
    ] = "",
    caller: Annotated[str, typer.Option("--caller", metavar="ID", help="Whose run it is.")] = "",
    label: LabelOption = None,
    quiet: QuietOption = False,
    store: CodeStoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run an agent here and now; its answer goes to stdout.

    Ctrl-C stops it after the current step and says how to go on. `holdfast run --model openai:gpt-5 "prompt"` asks a
    model without any code of yours.
    """
    if model:
        code, prompt = "", _only(code, prompt)
    watcher = Watcher() if quiet else Display()
    if model:
        app = app_of_model(model, store=store, create=True, delivery=watcher)
        target = ["--model", model]
    else:
        app = app_of(find(code), code, store=store, create=True, delivery=watcher)
        target = [code]
    name = agent_name(app, agent)
    text = prompt_of(prompt)
    the_id = check_run_id(run_id) if run_id else new_run_id()
    resume = resume_command(target, the_id, store)
    labels = {**labels_of(label), "command": " ".join(target)}
    if app.store is None:
        talk("this App has no store: the run cannot be resumed")

    async def work() -> Ending:
        drive_it = partial(app.run, name, text, run_id=the_id, caller_id=caller, labels=labels)
        return await ending_of(app, the_id, drive_it, resume, unpark_command(the_id, store))

    with watcher:
        watcher.say(f"run {the_id} of {name}", "bold")
        ending = asyncio.run(
            drive(app, watcher, work, stopped_at_once=lambda: talk(f"stopped at once. Go on with: {resume}"))
        )
    sys.exit(print_ending(ending, as_json_text=as_json))


def _only(code: str, prompt: str) -> str:
    """With --model the first argument is the prompt."""
    if prompt:
        raise WrongUsage("give either MODULE:AGENT or --model, not both")
    return code
