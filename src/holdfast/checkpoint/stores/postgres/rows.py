"""From rows to the records and entries that callers know."""

from datetime import UTC, datetime
from typing import Any

from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.liveness import ProcessIdentity, is_alive
from holdfast.checkpoint.record import RunRecord, StoredRun
from holdfast.checkpoint.stores.postgres.text import from_text

Row = tuple[Any, ...]

#: The columns of a record in `records.sql` and `load.sql`. What follows them is the query's own.
RECORD_COLUMNS = 22


class RecordReader:
    """Makes records of rows that were read at one moment. Asks for each worker once whether it is alive."""

    def __init__(self) -> None:
        self._alive: dict[str, bool] = {}

    def record(self, row: Row) -> RunRecord:
        run_id, agent_name, caller_id, parent_run_id, status, created_at, updated_at, owner = row[:8]
        host, pid, started, heard_from = row[8:12]
        token, strikes, not_before, reason, cancel_requested, expires_at = row[12:18]
        next_seq, size, meta, progress = row[18:RECORD_COLUMNS]
        return RunRecord(
            run_id=from_text(run_id),
            agent_name=from_text(agent_name),
            caller_id=from_text(caller_id),
            parent_run_id=None if parent_run_id is None else from_text(parent_run_id),
            status=Status(status),
            created_at=_utc(created_at),
            updated_at=_utc(updated_at),
            owner=None if owner is None else from_text(owner),
            # A worker is in the row only while the run is running.
            owner_alive=host is not None and self._is_alive(owner, host, pid, started, heard_from=heard_from),
            token=token,
            strikes=strikes,
            not_before=_utc(not_before),
            reason=from_text(reason),
            cancel_requested=cancel_requested,
            expires_at=None if expires_at is None else _utc(expires_at),
            next_seq=next_seq,
            size=size,
            meta=meta,
            progress=progress,
        )

    def _is_alive(self, worker_id: str, host: str, pid: int, started: str, *, heard_from: bool) -> bool:
        if worker_id not in self._alive:
            known = is_alive(process(host, pid, started))
            self._alive[worker_id] = heard_from if known is None else known
        return self._alive[worker_id]


def process(host: str, pid: int, started: str) -> ProcessIdentity:
    return ProcessIdentity(host=from_text(host), pid=pid, started=from_text(started))


def stored_run(rows: list[Row], after: int) -> StoredRun | None:
    """The run that `load.sql` gave; `None` if there is none.

    Raises:
        RunDamaged: an entry is missing or is not what was written.
    """
    head = next((row for row in rows if row[0] is not None), None)
    if head is None:
        return None
    record, first_seq = RecordReader().record(head), head[RECORD_COLUMNS]
    journal = sorted((row[RECORD_COLUMNS + 1 :] for row in rows if row[0] is None), key=lambda row: row[0])
    due = max(first_seq, after + 1)
    entries = []
    for seq, kind, checksum, body in journal:
        if seq != due:
            raise RunDamaged(record.run_id, f"entry {due} is missing")
        entries.append(_entry(record.run_id, seq, kind, checksum, body))
        due += 1
    if due < record.next_seq:
        raise RunDamaged(record.run_id, f"entry {due} is missing")
    if due > max(record.next_seq, after + 1):
        raise RunDamaged(record.run_id, f"there are {due - record.next_seq} entries more than were written")
    return StoredRun(record=record, entries=tuple(entries))


def _entry(run_id: str, seq: int, kind: str, checksum: int, body: bytes) -> Entry:
    try:
        entry = Entry(seq=seq, kind=EntryKind(kind), body=body)
    except ValueError as exc:
        raise RunDamaged(run_id, f"entry {seq} is of no known kind: {kind!r}") from exc
    if entry.checksum() != checksum:
        raise RunDamaged(run_id, f"the checksum of entry {seq} does not fit")
    return entry


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
