"""holdfast run"""

import asyncio
import sys
from functools import partial
from typing import Annotated

import typer

from holdfast.cli.errors import UsageError
from holdfast.cli.loading import build_app, build_model_app, load_object, select_agent_name
from holdfast.cli.options import (
    AgentOption,
    CodeStoreOption,
    JsonOption,
    LabelOption,
    ModelOption,
    QuietOption,
    parse_labels,
    read_prompt,
)
from holdfast.cli.output import print_diagnostic
from holdfast.cli.progress import ProgressDisplay, ProgressListener
from holdfast.cli.runner import (
    CommandResult,
    collect_result,
    format_resume_command,
    format_unpark_command,
    print_result,
    run_app,
)
from holdfast.core.info import check_run_id, new_run_id


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
        code, prompt = "", _get_prompt_argument(code, prompt)
    watcher = ProgressListener() if quiet else ProgressDisplay()
    if model:
        app = build_model_app(model, store=store, create=True, listener=watcher)
        target = ["--model", model]
    else:
        app = build_app(load_object(code), code, store=store, create=True, listener=watcher)
        target = [code]
    name = select_agent_name(app, agent)
    text = read_prompt(prompt)
    the_id = check_run_id(run_id) if run_id else new_run_id()
    resume = format_resume_command(target, the_id, store)
    labels = {**parse_labels(label), "command": " ".join(target)}
    if app.store is None:
        print_diagnostic("this App has no store: the run cannot be resumed")

    async def work() -> CommandResult:
        drive_it = partial(app.run, name, text, run_id=the_id, caller_id=caller, labels=labels)
        return await collect_result(app, the_id, drive_it, resume, format_unpark_command(the_id, store))

    with watcher:
        watcher.print_status(f"run {the_id} of {name}", "bold")
        ending = asyncio.run(
            run_app(
                app, watcher, work, on_force_quit=lambda: print_diagnostic(f"stopped at once. Go on with: {resume}")
            )
        )
    sys.exit(print_result(ending, as_json_text=as_json))


def _get_prompt_argument(code: str, prompt: str) -> str:
    """With --model the first argument is the prompt."""
    if prompt:
        raise UsageError("give either MODULE:AGENT or --model, not both")
    return code
