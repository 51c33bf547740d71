"""holdfast submit"""

import asyncio
import sys
from datetime import timedelta
from typing import Annotated

import typer

from holdfast.checkpoint.codec import Outcome, decode
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.listing import summarize_run
from holdfast.cli.options import JsonOption, LabelOption, StoreOption, parse_labels, read_prompt
from holdfast.cli.output import print_json
from holdfast.cli.runner import CommandResult, print_result
from holdfast.cli.stores import get_record, open_client
from holdfast.core.info import RunInfo, new_run_id

#: How long a waiter trusts that a sign will come before it looks by itself.
_POLL_INTERVAL = timedelta(seconds=1)


def submit(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT", help="The agent's name, as the workers know it.", show_default=False)
    ],
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What is asked; - reads it from stdin.", show_default=False)
    ],
    run_id: Annotated[
        str, typer.Option("--run-id", metavar="ID", help="The run's id. Submitting the same again changes nothing.")
    ] = "",
    caller: Annotated[str, typer.Option("--caller", metavar="ID", help="Whose run it is: callers take turns.")] = "",
    label: LabelOption = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end and print the answer.")] = False,
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Queue a run for whichever worker takes it, and print its id.

    Once the id is printed, the run is safe. No code is needed here: a worker that knows the agent has it.
    """
    info = RunInfo(
        run_id=run_id or new_run_id(),
        agent_name=agent,
        caller_id=caller,
        labels=parse_labels(label),
        inputs={"prompt": read_prompt(prompt)},
    )
    ending = asyncio.run(_submit(store, info, wait=wait))
    if ending is not None:
        sys.exit(print_result(ending, as_json_text=as_json))
    if as_json:
        print_json({"run_id": info.run_id, "status": "queued"})
    else:
        print(info.run_id)


async def _submit(store_url: str, info: RunInfo, *, wait: bool) -> CommandResult | None:
    async with open_client(store_url, create=True) as (operations, store):
        await operations.submit(info)
        return await _wait_for_result(store, info.run_id) if wait else None


async def _wait_for_result(store: CheckpointStore, run_id: str) -> CommandResult:
    """Wait for the end of the run. Its messages are not looked at, so no code is needed to read them."""
    while True:
        record = await get_record(store, run_id)
        if record.status is RunStatus.PARKED:
            return CommandResult(run_id=run_id, status="parked", reason=record.reason)
        if record.is_terminal:
            break
        await store.wait_for_change(_POLL_INTERVAL)
    stored = await store.load(run_id)
    outcomes = [entry.body for entry in stored.entries if entry.kind is EntryKind.OUTCOME]
    outcome = decode(outcomes[-1], Outcome) if outcomes else Outcome(error=stored.record.reason)
    ends = {RunStatus.DONE: "done", RunStatus.FAILED: "failed", RunStatus.CANCELLED: "cancelled"}
    return CommandResult(
        run_id=run_id,
        status=ends[stored.record.status],  # type: ignore[arg-type]
        output=outcome.output,
        steps=summarize_run(stored.record).steps,
        usage=outcome.usage,
        reason=outcome.error or "",
    )
