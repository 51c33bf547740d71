"""holdfast submit"""

import asyncio
import sys
from datetime import timedelta
from typing import Annotated

import typer

from holdfast.checkpoint.codec import Outcome, decode
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli.ending import Ending, print_ending
from holdfast.cli.listing import listed
from holdfast.cli.options import JsonOption, LabelOption, StoreOption
from holdfast.cli.output import print_json
from holdfast.cli.stores import operating, record_of
from holdfast.cli.words import labels_of, prompt_of
from holdfast.run.info import RunInfo, new_run_id

#: How long a waiter trusts that a sign will come before it looks by itself.
_LOOK = timedelta(seconds=1)


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
        labels=labels_of(label),
        inputs={"prompt": prompt_of(prompt)},
    )
    ending = asyncio.run(_submit(store, info, wait=wait))
    if ending is not None:
        sys.exit(print_ending(ending, as_json_text=as_json))
    if as_json:
        print_json({"run_id": info.run_id, "status": "queued"})
    else:
        print(info.run_id)


async def _submit(store_url: str, info: RunInfo, *, wait: bool) -> Ending | None:
    async with operating(store_url, create=True) as (operations, store):
        await operations.submit(info)
        return await _end(store, info.run_id) if wait else None


async def _end(store: CheckpointStore, run_id: str) -> Ending:
    """Wait for the end of the run. Its messages are not looked at, so no code is needed to read them."""
    while True:
        record = await record_of(store, run_id)
        if record.status is Status.PARKED:
            return Ending(run_id=run_id, status="parked", reason=record.reason)
        if record.over:
            break
        await store.changed(_LOOK)
    stored = await store.load(run_id)
    outcomes = [entry.body for entry in stored.entries if entry.kind is EntryKind.OUTCOME]
    outcome = decode(outcomes[-1], Outcome) if outcomes else Outcome(error=stored.record.reason)
    ends = {Status.DONE: "done", Status.FAILED: "failed", Status.CANCELLED: "cancelled"}
    return Ending(
        run_id=run_id,
        status=ends[stored.record.status],  # type: ignore[arg-type]
        output=outcome.output,
        steps=listed(stored.record).steps,
        usage=outcome.usage,
        reason=outcome.error or "",
    )
