"""holdfast run"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Annotated

import typer

from holdfast.checkpoint.errors import RunNotFound
from holdfast.cli.errors import UsageError
from holdfast.cli.loading import build_app, build_model_app, load_object, select_agent_name
from holdfast.cli.options import (
    AgentOption,
    CodeStoreOption,
    InputOption,
    JsonOption,
    LabelOption,
    ModelOption,
    QuietOption,
    parse_inputs,
    parse_labels,
    read_prompt,
)
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
from holdfast.cli.waiting import format_answer_command
from holdfast.core.info import check_run_id, new_run_id
from holdfast.core.observation.trace_context import continue_environment_trace
from holdfast.core.result import Result
from holdfast.core.waiting import RunWaiting, describe_waits


def run(
    code: Annotated[
        str,
        typer.Argument(metavar="MODULE:AGENT", help="An agent or an App. Omit it with --model.", show_default=False),
    ] = "",
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from stdin.", show_default=False)
    ] = "",
    model: ModelOption = "",
    agent: AgentOption = "",
    run_id: Annotated[
        str, typer.Option("--run-id", metavar="ID", help="The run's id. The id of an earlier run attaches to it.")
    ] = "",
    caller: Annotated[str, typer.Option("--caller", metavar="ID", help="The caller's id.")] = "",
    inputs: InputOption = None,
    label: LabelOption = None,
    through_waits: Annotated[
        bool, typer.Option("--through-waits", help="Keep waiting while the run waits for a person or a signal.")
    ] = False,
    quiet: QuietOption = False,
    store: CodeStoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run an agent in this process and print its answer.

    Ctrl-C stops it after the current step and prints the command that resumes it. `holdfast run --model openai:gpt-5
    "prompt"` asks a model without an agent. The run belongs to the trace in TRACEPARENT, if there is one.
    """
    if model:
        code, prompt = "", _get_prompt_argument(code, prompt)
    listener = ProgressListener() if quiet else ProgressDisplay()
    if model:
        app = build_model_app(model, store=store, create=True, listener=listener)
        target = ["--model", model]
    else:
        app = build_app(load_object(code), code, store=store, create=True, listener=listener)
        target = [code]
    name = select_agent_name(app, agent)
    text, data = read_prompt(prompt), parse_inputs(inputs)
    is_new = not run_id
    run_id = check_run_id(run_id) if run_id else new_run_id()
    resume = format_resume_command(target, run_id, store)
    labels = {**parse_labels(label), "command": " ".join(target)}
    if app.store is None:
        print_diagnostic("this App has no store: the run cannot be resumed")

    async def work() -> CommandResult:
        if app.store is not None and not is_new:
            with suppress(RunNotFound):
                report_attachment(await get_record(app.store, run_id), listener)
        execute = partial(app.run, name, text, inputs=data, run_id=run_id, caller_id=caller, labels=labels)
        if through_waits:
            execute = partial(_run_through_waits, execute, listener, store)
        with continue_environment_trace(os.environ):
            return await collect_result(app, run_id, execute, resume, store)

    on_force_quit = partial(print_diagnostic, f"stopped immediately. Resume with: {resume}")
    with listener:
        listener.print_status(f"run {run_id} of {name}", "bold")
        result = asyncio.run(run_app(app, listener, work, on_force_quit=on_force_quit))
    sys.exit(print_result(result, as_json_text=as_json))


async def _run_through_waits(
    execute: Callable[..., Awaitable[Result]], listener: ProgressListener, store: str
) -> Result:
    """Execute the run to its end. Print how the calls that it waits for first are answered."""
    try:
        return await execute()
    except RunWaiting as waiting:
        listener.print_status(f"the run waits for {describe_waits(waiting.calls)}", "yellow")
        for call in waiting.calls:
            if command := format_answer_command(call, store):
                listener.print_status(f"in another terminal: {command}", "yellow")
    return await execute(through_waits=True)


def _get_prompt_argument(code: str, prompt: str) -> str:
    """Return the prompt, which is the first argument with --model."""
    if prompt:
        raise UsageError("give either MODULE:AGENT or --model, not both")
    return code
