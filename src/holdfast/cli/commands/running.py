"""Commands that start runs: run, submit, chat."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from functools import partial
from typing import Annotated, Literal

import typer

from holdfast.checkpoint.codec import Outcome, decode
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.cli.chat import ChatDisplay, ChatSession, LeaveChat, LineReader
from holdfast.cli.listeners import ProgressDisplay, ProgressListener
from holdfast.cli.loading import build_app, build_model_app, load_object, select_agent_name
from holdfast.cli.opening import open_client, report_slow_open
from holdfast.cli.options import (
    RUN_OPTIONS,
    AgentOption,
    CodeStoreOption,
    InputOption,
    JsonOption,
    ModelOption,
    QuietOption,
    StoreOption,
    parse_future_time,
    parse_inputs,
    read_prompt,
    take_options,
)
from holdfast.cli.output import CommandError, UsageError, print_diagnostic, print_json
from holdfast.cli.printing import format_answer_command, format_command
from holdfast.cli.run_session import (
    CommandResult,
    SignalHandler,
    collect_result,
    format_resume_command,
    make_waiting_result,
    print_result,
    report_attachment,
    run_app,
)
from holdfast.core.errors import RunInterrupted
from holdfast.core.run.info import RunInfo, RunOptions, check_run_id
from holdfast.core.run.result import Result
from holdfast.core.run.waiting import RunWaiting, describe_waits
from holdfast.core.trace_context import continue_environment_trace
from holdfast.ids import make_id
from holdfast.runtime.operations.outcomes import is_settled, raise_if_waiting
from holdfast.runtime.operations.run_client import RunClient
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import summarize_run


def chat(
    code: Annotated[str, typer.Argument(metavar="MODULE:AGENT", help="An agent or an App.", show_default=False)],
    key: Annotated[str, typer.Option("--key", metavar="KEY", help="Tells conversations apart.")] = "chat",
    agent: AgentOption = "",
    store: CodeStoreOption = "",
) -> None:
    """Chat with an agent. The conversation stays in the store.

    Ctrl-C leaves, and the same command returns to the same place. Calls that need an approval are asked for inline:
    yes, no, or edit the arguments.
    """
    os.environ.setdefault("PYDANTIC_AI_NO_BANNER", "1")  # it would come between the lines of the chat
    display = ChatDisplay()
    app = build_app(load_object(code), code, store=store, create=True, listener=display)
    if app.store is None:
        raise CommandError("this App has no store: a conversation needs one")
    name = select_agent_name(app, agent)
    display.name = name
    options = (*(("--key", key) if key != "chat" else ()), *(("--agent", agent) if agent else ()))
    back = format_command("chat", store, code, options=options)
    display.print_status(f"{name}, conversation {key}. Ctrl-C leaves; the same command returns.", "dim")

    async def run() -> None:
        handler = SignalHandler(app.shutdown, display, partial(print_diagnostic, f"return with: {back}"))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(handler.close)
            with report_slow_open():
                await stack.enter_async_context(app)
            handler.install()
            session = ChatSession(app, app.conversation(name, key), display, LineReader(handler), store)
            await session.run()

    try:
        asyncio.run(run())
    except (LeaveChat, RunInterrupted):
        display.print_status(f"return with: {back}", "dim")
        sys.exit(0)


@take_options("options", RUN_OPTIONS)
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
    inputs: InputOption = None,
    *,
    options: RunOptions,
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
    run_id = check_run_id(run_id) if run_id else make_id()
    resume = format_resume_command(target, run_id, store)
    options["labels"] = {**(options.get("labels") or {}), "command": " ".join(target)}
    if app.store is None:
        print_diagnostic("this App has no store: the run cannot be resumed")

    async def work() -> CommandResult:
        if app.store is not None and not is_new:
            with suppress(RunNotFound):
                report_attachment(await get_record(app.store, run_id), listener)
        execute = partial(app.run, name, text, inputs=data, run_id=run_id, **options)
        if through_waits:
            execute = partial(_run_through_waits, execute, listener, store)
        with continue_environment_trace(os.environ):
            return await collect_result(app, run_id, execute, resume, store)

    on_force_quit = partial(print_diagnostic, f"stopped immediately. Resume with: {resume}")
    with listener:
        listener.print_status(f"run {run_id} of {name}", "bold")
        result = asyncio.run(run_app(app, listener, work, on_force_quit=on_force_quit))
    sys.exit(print_result(result, as_json_text=as_json, stop_signal=listener.stop_signal))


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


_RESULT_STATUSES: dict[RunStatus, Literal["done", "failed", "cancelled"]] = {
    RunStatus.DONE: "done",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}


@take_options("options", RUN_OPTIONS)
def submit(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.", show_default=False)],
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from stdin.", show_default=False)
    ],
    run_id: Annotated[
        str, typer.Option("--run-id", metavar="ID", help="The run's id. Submitting it again changes nothing.")
    ] = "",
    inputs: InputOption = None,
    *,
    options: RunOptions,
    not_before: Annotated[
        str,
        typer.Option("--not-before", metavar="TIME", help="Do not begin earlier: in 30m, 2h, 3d, or an ISO time."),
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it.")] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Queue a run for a worker, and print its id.

    Once the id is printed, the run is durable. The agent's code is needed only in the worker. The run belongs to the
    trace in the environment variable TRACEPARENT, if there is one.
    """
    # Refused here, a wrong option creates no store.
    info = RunInfo.create(agent, read_prompt(prompt), run_id=run_id or None, inputs=parse_inputs(inputs), **options)
    due = parse_future_time(not_before, "--not-before", utc_now()) if not_before else None
    submitted = asyncio.run(_submit(store, info, options, due, wait=wait))
    if isinstance(submitted, CommandResult):
        sys.exit(print_result(submitted, as_json_text=as_json))
    if as_json:
        print_json({"run_id": info.run_id, "status": submitted})
    else:
        print(info.run_id)


async def _submit(
    store_url: str, info: RunInfo, options: RunOptions, not_before: datetime | None, *, wait: bool
) -> CommandResult | RunStatus:
    """Submit the run, and return its result or its status."""
    async with open_client(store_url, create=True) as client:
        with continue_environment_trace(os.environ):
            await client.submit(
                info.agent_name,
                info.prompt,
                inputs=info.inputs,
                run_id=info.run_id,
                not_before=not_before,
                **options,
            )
        status = (await get_record(client.open_store, info.run_id)).current_status
        if not wait:
            return status
        if status is RunStatus.QUEUED:
            print_diagnostic(f"run {info.run_id} is queued: it waits for a worker that has the agent {info.agent_name}")
        return await _wait_for_result(client, info.run_id, store_url)


async def _wait_for_result(client: RunClient, run_id: str, store_url: str) -> CommandResult:
    """Wait until the run is terminal, parked, or waits for more than a time. Needs no agent's code."""
    with client.changes.listen() as changed:
        while not is_settled(record := await get_record(client.open_store, run_id)):
            try:
                raise_if_waiting(record)
            except RunWaiting as waiting:
                return make_waiting_result(waiting, store_url)
            await changed.wait()
    if record.status is RunStatus.PARKED:
        return CommandResult(run_id=run_id, status="parked", reason=record.reason)
    stored = await client.open_store.load(run_id)
    outcomes = [entry.body for entry in stored.entries if entry.kind is EntryKind.OUTCOME]
    outcome = decode(outcomes[-1], Outcome) if outcomes else Outcome(error=stored.record.reason)
    return CommandResult(
        run_id=run_id,
        status=_RESULT_STATUSES[stored.record.status],
        output=outcome.output,
        steps=summarize_run(stored.record).steps,
        usage=outcome.usage,
        reason=outcome.error or "",
    )
