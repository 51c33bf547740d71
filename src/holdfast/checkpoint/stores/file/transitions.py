"""From one state of a run to the next. Plain functions; `runs.py` writes what they give."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from holdfast.checkpoint.claim import Claim, backoff
from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.journal import Entry, Write
from holdfast.checkpoint.lifecycle import OVER, Status
from holdfast.checkpoint.record import Ending, RunFilter, RunRecord
from holdfast.checkpoint.stores.file.lines import State
from holdfast.checkpoint.stores.file.reading import Head


def queued(now: datetime) -> State:
    return State(status=Status.QUEUED, updated_at=now, not_before=now)


def taken(state: State, worker_id: str, token: int, now: datetime) -> State:
    strikes = state.strikes + 1
    return replace(
        state,
        status=Status.RUNNING,
        owner=worker_id,
        token=token,
        strikes=strikes,
        not_before=now + backoff(strikes),
        reason="",
        expires_at=None,
        updated_at=now,
    )


def written(state: State, write: Write, now: datetime) -> State:
    if write.replace:
        state = replace(state, size=0)
    state = extended(state, write.entries)
    if write.finished_step:
        state = replace(state, strikes=0, not_before=min(state.not_before, now))
    return replace(state, updated_at=now)


def settled(state: State, ending: Ending, now: datetime) -> State:
    return replace(
        extended(state, ending.entries),
        status=ending.status,
        reason=ending.reason,
        strikes=ending.strikes,
        not_before=now + ending.delay,
        expires_at=None if ending.keep is None else now + ending.keep,
        updated_at=now,
        cancel_requested=state.cancel_requested and ending.status not in OVER,
    )


def extended(state: State, entries: Sequence[Entry]) -> State:
    """Raises:
    StoreError: the entries do not carry the numbers that are due.
    """
    for seq, entry in enumerate(entries, state.next_seq):
        if entry.seq != seq:
            raise StoreError(f"entry {entry.seq} came where {seq} is due; nothing was written")
    size = state.size + sum(len(entry.body) for entry in entries)
    return replace(state, next_seq=state.next_seq + len(entries), size=size)


def claim_of(run_id: str, state: State) -> Claim:
    """The claim that made the state what it is."""
    return Claim(run_id=run_id, worker_id=state.owner or "", token=state.token, strikes=state.strikes)


def record_of(head: Head, *, owner_alive: bool) -> RunRecord:
    origin, state = head.origin, head.state
    return RunRecord(
        run_id=origin.run_id,
        agent_name=origin.agent_name,
        caller_id=origin.caller_id,
        parent_run_id=origin.parent_run_id,
        status=state.status,
        created_at=origin.created_at,
        updated_at=state.updated_at,
        owner=state.owner,
        owner_alive=owner_alive,
        token=state.token,
        strikes=state.strikes,
        not_before=state.not_before,
        reason=state.reason,
        cancel_requested=state.cancel_requested,
        expires_at=state.expires_at,
        next_seq=state.next_seq,
        size=state.size,
        meta=head.meta,
        progress=head.progress,
    )


def fits(record: RunRecord, wanted: RunFilter) -> bool:
    return (
        (not wanted.interrupted or record.interrupted)
        and (wanted.statuses is None or record.status in wanted.statuses)
        and (wanted.agent_name is None or record.agent_name == wanted.agent_name)
        and (wanted.caller_id is None or record.caller_id == wanted.caller_id)
        and (wanted.parent_run_id is None or record.parent_run_id == wanted.parent_run_id)
    )
