"""Runs in the background of others: submits, reads, notifies and cancels them."""

from collections.abc import Sequence
from contextlib import suppress

from holdfast.checkpoint.claims import cancel_run
from holdfast.checkpoint.codec import Outcome, decode, encode, encode_begin
from holdfast.checkpoint.errors import RunEnded, RunExists, RunNotClaimable, RunNotFound
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import NewRun, RunFilter, RunRecord
from holdfast.checkpoint.store import END, RunStore, get_record, iter_runs
from holdfast.core.errors import RunParked
from holdfast.core.ports import BackgroundRun, ChildOutcome
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import ENDED_TOPIC, MESSAGE_TOPIC, Mail, encode_message


class StoredBackground:
    """A `BackgroundRuns` on a store."""

    def __init__(self, checkpoints: StoreCheckpoints) -> None:
        self._checkpoints, self._store = checkpoints, checkpoints.store

    async def submit(self, info: RunInfo) -> bool:
        """Queue a run for any worker. Return False if it is there already.

        Raises:
            RunParked: another run has its id.
        """
        begin = Entry(seq=0, kind=EntryKind.BEGIN, body=encode_begin(info))
        try:
            await self._store.create(NewRun.create(info, encode(Progress()), [begin]))
            return True
        except RunExists:
            with suppress(RunNotFound):  # it was removed meanwhile
                found = await get_record(self._store, info.run_id)
                if decode(found.info, RunInfo).starter != info.starter:
                    raise RunParked("taken id", f"this run has not started run {info.run_id}") from None
        return False

    async def read(self, run_id: str) -> BackgroundRun | None:
        """Return a run, with its outcome if it has ended; `None` if there is none."""
        try:
            record = await get_record(self._store, run_id)
            if not record.is_terminal:
                return _make_run(record)
            stored = await self._store.load(run_id, after=record.next_seq - 2)
        except RunNotFound:
            return None
        last = stored.entries[-1] if stored.entries else None
        outcome = Outcome(error=record.reason)  # a damaged run that was cancelled has no other
        if last is not None and last.kind is EntryKind.OUTCOME:
            outcome = decode(last.body, Outcome)
        return _make_run(stored.record, ChildOutcome(output=outcome.output, usage=outcome.usage, error=outcome.error))

    async def list_children(self, parent_run_id: str) -> Sequence[BackgroundRun]:
        """Return the children in the background of a run, oldest first, without their outcomes."""
        found = iter_runs(self._store, RunFilter(parent_run_id=parent_run_id))
        return [_make_run(record) async for record in found if record.background]

    async def read_notices(self, run_id: str) -> Sequence[Mail]:
        """Return the unread notices of a run that others have ended."""
        unread = (await self._store.load(run_id, after=END)).mail
        return [mail for mail in unread if mail.topic.startswith(ENDED_TOPIC)]

    async def send(self, run_id: str, text: str, mail_id: str) -> bool:
        """Send a message. Return False if the run has ended."""
        mail = Mail(mail_id=mail_id, topic=MESSAGE_TOPIC, body=encode_message(text))
        try:
            await self._store.post(run_id, mail)
        except (RunEnded, RunNotFound):
            return False
        return True

    async def cancel(self, run_id: str) -> None:
        """Cancel a run, or ask its worker to. Does nothing if it has ended."""
        with suppress(RunNotFound, RunNotClaimable):
            await cancel_run(self._checkpoints.claims, run_id)


async def has_outlived_parent(store: RunStore, record: RunRecord) -> bool:
    """Whether it is a child in the background whose parent has ended: a worker that was fenced has started it."""
    if record.parent_run_id is None or not record.background:
        return False
    try:
        return (await get_record(store, record.parent_run_id)).is_terminal
    except RunNotFound:
        return True


def _make_run(record: RunRecord, outcome: ChildOutcome | None = None) -> BackgroundRun:
    return BackgroundRun(
        run_id=record.run_id,
        agent_name=record.agent_name,
        status=record.current_status,
        reason=record.reason,
        started_by=decode(record.info, RunInfo).starter,
        outcome=outcome,
    )
