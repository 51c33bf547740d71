"""Cancels a stored run and its children, without executing them."""

import asyncio
from contextlib import suppress

from holdfast.checkpoint.claims import Claim
from holdfast.checkpoint.codec import Outcome, decode, decode_begin, encode
from holdfast.checkpoint.errors import (
    RecordDecodeError,
    RunBusy,
    RunDamaged,
    RunNotClaimable,
    RunNotFound,
    UnknownVersion,
)
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.ownership import Claims
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import Release, RunFilter, RunStatus, StoredRun, restore_previous
from holdfast.checkpoint.store import get_record, iter_runs
from holdfast.config import Retention
from holdfast.core.errors import RunCancelled, format_error


async def cancel_run(claims: Claims, run_id: str) -> None:
    """Cancel a run without a live owner, or ask its owner to. Its unfinished child runs are cancelled first.

    Raises:
        RunNotFound: there is no such run. RunNotClaimable: it is terminal already.
    """
    retention = claims.settings.retention
    with claims.use():
        try:
            claim, undo = await _claim(claims, run_id)
        except RunBusy:
            await claims.store.request_cancel(run_id)
            return
        try:
            await cancel_children(claims, run_id)
            stored = await claims.store.load(run_id)
            release = _make_release(stored, retention)
        except (RunDamaged, RecordDecodeError, UnknownVersion) as exc:
            await claims.release_durably(claim, make_cancelled_release(f"cancelled; {exc}", retention))
        except asyncio.CancelledError:
            claims.start(claims.release_claim(claim, undo))
            raise
        except BaseException:
            await claims.release_claim(claim, undo)
            raise
        else:
            await claims.release_durably(claim, release)
            if not retention.cancelled and stored.record.parent_run_id is None:
                await claims.store.remove(run_id)


async def cancel_children(claims: Claims, run_id: str, *, continues: bool = False) -> None:
    """Cancel the unfinished children of a run that the caller has claimed and will cancel next, or that continues.

    Recovery leaves them alone meanwhile, because their parent is not terminal. If this process dies half-way, the
    recorded cancel request makes the next owner cancel the run.
    """
    children = [child async for child in iter_runs(claims.store, RunFilter(parent_run_id=run_id))]
    if children and not continues:
        await claims.store.request_cancel(run_id)
    for child in children:
        if child.is_terminal:
            await cancel_children(claims, child.run_id)
            continue
        with suppress(RunNotFound, RunNotClaimable):  # it has ended meanwhile
            await cancel_run(claims, child.run_id)


def make_cancelled_release(reason: str, retention: Retention) -> Release:
    """Return the release that records a cancel without an outcome."""
    return Release(status=RunStatus.CANCELLED, reason=reason, retention=retention.cancelled)


async def _claim(claims: Claims, run_id: str) -> tuple[Claim, Release]:
    """Claim a run without a live owner. Returns the claim, and the release that undoes it."""
    try:
        claim = await claims.claim(claims.store.claim(run_id, claims.worker_id), claims.restore)
    except RunNotClaimable as exc:
        if exc.status not in (RunStatus.PARKED, RunStatus.WAITING):
            raise
        record = await get_record(claims.store, run_id)
        waited = Release(
            status=RunStatus(exc.status), reason=record.reason, wake_at=record.wake_at, wake_on=record.wake_on
        )
        return await claims.claim_with_status(run_id, waited.status, waited), waited
    return claim, restore_previous(claim)


def _make_release(stored: StoredRun, retention: Retention) -> Release:
    """Return the release that records the cancel and its outcome.

    Raises:
        CheckpointError: the run cannot be read.
    """
    decode_begin(stored)
    record = stored.record
    text = format_error(RunCancelled(f"run {record.run_id} was cancelled"))
    outcome = encode(Outcome(error=text, usage=decode(record.progress, Progress).usage))
    return Release(
        status=RunStatus.CANCELLED,
        reason=text,
        entries=[Entry(seq=record.next_seq, kind=EntryKind.OUTCOME, body=outcome)],
        retention=retention.cancelled,
    )
