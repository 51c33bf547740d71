"""Finds the draft of a run: in this process if it executes the run, else in the store."""

from datetime import timedelta

from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.draft import Draft
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.clock import Clock
from holdfast.runtime.events.draft_board import DraftBoard

#: How long a request for drafts is valid, and how often it is renewed.
_REQUEST_TTL, _RENEW_INTERVAL = timedelta(seconds=30), timedelta(seconds=10)


class DraftReader:
    """Reads the drafts of one run, and asks its worker for them."""

    def __init__(self, store: CheckpointStore, board: DraftBoard, worker_id: str, clock: Clock) -> None:
        self._store, self._board, self._worker_id, self._clock = store, board, worker_id, clock
        self._requested_at: float | None = None

    def is_local(self, record: RunRecord) -> bool:
        """Whether this process executes the run."""
        return record.status is RunStatus.RUNNING and record.owner == self._worker_id

    async def read(self, record: RunRecord) -> Draft | None:
        """Return the present draft of a running run."""
        if not (record.status is RunStatus.RUNNING and record.owner_alive):
            return None
        if self._board.shows_at_once and self.is_local(record):
            return self._board.get(record.run_id)
        now = self._clock.monotonic()
        if self._requested_at is None or now - self._requested_at >= _RENEW_INTERVAL.total_seconds():
            await self._store.request_drafts(record.run_id, _REQUEST_TTL)
            self._requested_at = now
        body = await self._store.read_draft(record.run_id)
        try:
            return None if body is None else decode(body, Draft)
        except RecordDecodeError:  # of a newer holdfast: the reply will be seen when it is recorded
            return None
