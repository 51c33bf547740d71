"""holdfast submit"""

import asyncio
import os
import sys
from datetime import datetime, timedelta
from typing import Annotated, Literal

import typer

from holdfast.checkpoint.codec import Outcome, decode
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.formatting import utc_now
from holdfast.cli.options import (
    InputOption,
    JsonOption,
    LabelOption,
    StoreOption,
    parse_future_time,
    parse_inputs,
    parse_labels,
    read_prompt,
)
from holdfast.cli.output import print_diagnostic, print_json
from holdfast.cli.runner import CommandResult, make_waiting_result, print_result
from holdfast.cli.stores import get_record, open_client
from holdfast.core.info import RunInfo, new_run_id
from holdfast.core.observation.trace_context import annotate_submit, continue_environment_trace
from holdfast.core.waiting import RunWaiting
from holdfast.runtime.client import RunClient
from holdfast.runtime.reading import present_status, summarize_run

#: Polling is the fallback for a lost change notification.
_POLL_INTERVAL = timedelta(seconds=1)

_RESULT_STATUSES: dict[RunStatus, Literal["done", "failed", "cancelled"]] = {
    RunStatus.DONE: "done",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}


def submit(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.", show_default=False)],
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from stdin.", show_default=False)
    ],
    run_id: Annotated[
        str, typer.Option("--run-id", metavar="ID", help="The run's id. Submitting it again changes nothing.")
    ] = "",
    caller: Annotated[
        str, typer.Option("--caller", metavar="ID", help="The caller's id. Workers serve the callers in turn.")
    ] = "",
    inputs: InputOption = None,
    label: LabelOption = None,
    not_before: Annotated[
        str,
        typer.Option("--not-before", metavar="TIME", help="Do not begin earlier: in 30m, 2h, 3d, or an ISO time."),
    ] = "",
    priority: Annotated[
        int, typer.Option("--priority", metavar="N", help="From -10 to 10. Workers take higher ones first.")
    ] = 0,
    key: Annotated[
        str, typer.Option("--key", metavar="KEY", help="Runs with the same key share the limit of that key.")
    ] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and print it.")] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Queue a run for a worker, and print its id.

    Once the id is printed, the run is durable. The agent's code is needed only in the worker. The run belongs to the
    trace in the environment variable TRACEPARENT, if there is one.
    """
    info = RunInfo(
        run_id=run_id or new_run_id(),
        agent_name=agent,
        caller_id=caller,
        labels=parse_labels(label),
        inputs={**parse_inputs(inputs), "prompt": read_prompt(prompt)},
        priority=priority,
        key=key,
    )
    due = parse_future_time(not_before, "--not-before", utc_now()) if not_before else None
    submitted = asyncio.run(_submit(store, info, due, wait=wait))
    if isinstance(submitted, CommandResult):
        sys.exit(print_result(submitted, as_json_text=as_json))
    if as_json:
        print_json({"run_id": info.run_id, "status": submitted})
    else:
        print(info.run_id)


async def _submit(
    store_url: str, info: RunInfo, not_before: datetime | None, *, wait: bool
) -> CommandResult | RunStatus:
    """Submit the run, and return its result or its status."""
    async with open_client(store_url, create=True) as (client, store):
        with continue_environment_trace(os.environ):
            await client.submit(info, not_before, annotations=annotate_submit(None, info))
        status = present_status(await get_record(store, info.run_id))
        if not wait:
            return status
        if status is RunStatus.QUEUED:
            print_diagnostic(f"run {info.run_id} is queued: it waits for a worker that has the agent {info.agent_name}")
        return await _wait_for_result(client, store, info.run_id, store_url)


async def _wait_for_result(client: RunClient, store: CheckpointStore, run_id: str, store_url: str) -> CommandResult:
    """Wait until the run is terminal, parked, or waits for more than a time. Needs no agent's code."""
    while True:
        record = await get_record(store, run_id)
        try:
            client.raise_if_waiting(record)
        except RunWaiting as waiting:
            return make_waiting_result(waiting, store_url)
        if record.status is RunStatus.PARKED:
            return CommandResult(run_id=run_id, status="parked", reason=record.reason)
        if record.is_terminal:
            break
        await store.wait_for_change(_POLL_INTERVAL)
    stored = await store.load(run_id)
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
