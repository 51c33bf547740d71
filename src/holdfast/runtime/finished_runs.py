"""Stores a run that is done from its beginning: a record for readers, which no worker executes."""

import secrets
from collections.abc import Sequence
from datetime import timedelta

from holdfast.checkpoint.claims import WorkerIdentity, this_process
from holdfast.checkpoint.codec import Outcome, Progress, encode, encode_begin
from holdfast.checkpoint.errors import RunExists
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.core.run.info import RunInfo


async def store_finished_run(
    store: RunStore,
    info: RunInfo,
    outcome: Outcome,
    retention: timedelta,
    bodies: Sequence[tuple[EntryKind, bytes]] = (),
) -> None:
    """Store a run with these entries and this outcome. It takes the place of an earlier one with its id.

    Raises:
        StoreError: the store failed. A part of the run may be stored: call this again.
    """
    entries = [(EntryKind.BEGIN, encode_begin(info)), *bodies]
    run = NewRun.create(
        info,
        encode(Progress(own_usage=outcome.usage)),
        [Entry(seq=seq, kind=kind, body=body) for seq, (kind, body) in enumerate(entries)],
    )
    last = Entry(seq=len(entries), kind=EntryKind.OUTCOME, body=encode(outcome))
    worker = WorkerIdentity(worker_id=f"w-{secrets.token_hex(8)}", process=this_process())
    await store.register_worker(worker)
    try:
        try:
            claim = await store.create(run, worker_id=worker.worker_id)
        except RunExists:
            await store.remove(info.run_id)
            claim = await store.create(run, worker_id=worker.worker_id)
        if claim is not None:
            await store.release(claim, Release(status=RunStatus.DONE, entries=[last], retention=retention))
    finally:
        await store.deregister_worker(worker.worker_id)
