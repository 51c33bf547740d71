"""From rows to the records and entries that callers know."""

from datetime import UTC, datetime

import msgspec
from psycopg.pq.abc import PGresult

from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.liveness import ProcessIdentity, is_alive
from holdfast.checkpoint.pieces import unpacked
from holdfast.checkpoint.record import RunRecord, StoredRun
from holdfast.checkpoint.stores.postgres.text import from_text
from holdfast.checkpoint.stores.postgres.wire import as_int, as_text


class _Row(msgspec.Struct, frozen=True):
    """What `record.sql` gives. Bytes are in hexadecimal digits."""

    run_id: str
    agent_name: str
    caller_id: str
    parent_run_id: str | None
    status: Status
    created_at: datetime
    updated_at: datetime
    owner: str | None
    #: The worker that owns it, while it is running and that worker is enlisted.
    host: str | None
    pid: int | None
    started: str | None
    heard_from: bool | None
    token: int
    strikes: int
    not_before: datetime
    reason: str
    cancel_requested: bool
    expires_at: datetime | None
    first_seq: int
    next_seq: int
    size: int
    meta: str
    progress: str


_rows = msgspec.json.Decoder(_Row)


class RecordReader:
    """Makes records of rows that were read at one moment. Asks once for each worker whether it is alive."""

    def __init__(self) -> None:
        self._alive: dict[str, bool] = {}

    def record(self, encoded: bytes) -> RunRecord:
        return self.of(_rows.decode(encoded))

    def of(self, row: _Row) -> RunRecord:
        return RunRecord(
            run_id=from_text(row.run_id),
            agent_name=from_text(row.agent_name),
            caller_id=from_text(row.caller_id),
            parent_run_id=None if row.parent_run_id is None else from_text(row.parent_run_id),
            status=row.status,
            created_at=row.created_at.astimezone(UTC),
            updated_at=row.updated_at.astimezone(UTC),
            owner=None if row.owner is None else from_text(row.owner),
            owner_alive=self._owner_alive(row),
            token=row.token,
            strikes=row.strikes,
            not_before=row.not_before.astimezone(UTC),
            reason=from_text(row.reason),
            cancel_requested=row.cancel_requested,
            expires_at=None if row.expires_at is None else row.expires_at.astimezone(UTC),
            next_seq=row.next_seq,
            size=row.size,
            meta=bytes.fromhex(row.meta),
            progress=bytes.fromhex(row.progress),
        )

    def _owner_alive(self, row: _Row) -> bool:
        if row.owner is None or row.host is None or row.pid is None or row.started is None:
            return False
        if row.owner not in self._alive:
            known = is_alive(process(row.host, row.pid, row.started))
            self._alive[row.owner] = bool(row.heard_from) if known is None else known
        return self._alive[row.owner]


def process(host: str, pid: int, started: str) -> ProcessIdentity:
    return ProcessIdentity(host=from_text(host), pid=pid, started=from_text(started))


def stored_run(result: PGresult, after: int) -> StoredRun | None:
    """The run that `load_run` gave; `None` if there is none.

    Raises:
        RunDamaged: an entry is missing or is not what was written.
    """
    if not result.ntuples:
        return None
    value = result.get_value
    row = _rows.decode(value(0, 3) or b"")
    record = RecordReader().of(row)
    first = due = max(row.first_seq, after + 1)
    entries: list[Entry] = []
    for n in range(1, result.ntuples):
        seq = as_int(value(n, 0))
        if seq != due and (entries or seq > due):
            raise RunDamaged(record.run_id, f"entry {due} is missing")
        try:
            entries += unpacked([(seq, as_text(value(n, 1)), as_int(value(n, 2)), value(n, 3) or b"")])
        except (ValueError, LookupError) as exc:
            raise RunDamaged(record.run_id, f"what begins with entry {seq} is not what was written") from exc
        due = entries[-1].seq + 1
    if due < row.next_seq:
        raise RunDamaged(record.run_id, f"entry {due} is missing")
    if due > max(row.next_seq, after + 1):
        raise RunDamaged(record.run_id, f"there are {due - row.next_seq} entries more than were written")
    earlier = first - entries[0].seq if entries else 0
    return StoredRun(record=record, entries=tuple(entries[earlier:]))
