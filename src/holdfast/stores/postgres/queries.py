"""From rows to the records and entries that callers know.

The questions a store asks the server beside its writes.
"""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import msgspec
from psycopg.pq.abc import PGresult

from holdfast.checkpoint.claim import ProcessIdentity, WorkerIdentity, is_process_alive, this_process
from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Entry, unpack_segments
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.stores.postgres import connection
from holdfast.stores.postgres.connection import decode_int, decode_text, escape_text, unescape_text
from holdfast.stores.postgres.database import ReaderPool, SqlFiles


class _RunRow(msgspec.Struct, frozen=True):
    """What `record.sql` gives. Bytes are in hexadecimal digits."""

    run_id: str
    agent_name: str
    caller_id: str
    parent_run_id: str | None
    status: RunStatus
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


_ROW_DECODER = msgspec.json.Decoder(_RunRow)


class RecordDecoder:
    """Makes records of rows that were read at one moment. Asks once for each worker whether it is alive."""

    def __init__(self) -> None:
        self._alive_owners: dict[str, bool] = {}

    def decode(self, encoded: bytes) -> RunRecord:
        return self.from_row(_ROW_DECODER.decode(encoded))

    def from_row(self, row: _RunRow) -> RunRecord:
        return RunRecord(
            run_id=unescape_text(row.run_id),
            agent_name=unescape_text(row.agent_name),
            caller_id=unescape_text(row.caller_id),
            parent_run_id=None if row.parent_run_id is None else unescape_text(row.parent_run_id),
            status=row.status,
            created_at=row.created_at.astimezone(UTC),
            updated_at=row.updated_at.astimezone(UTC),
            owner=None if row.owner is None else unescape_text(row.owner),
            owner_alive=self._is_owner_alive(row),
            token=row.token,
            strikes=row.strikes,
            not_before=row.not_before.astimezone(UTC),
            reason=unescape_text(row.reason),
            cancel_requested=row.cancel_requested,
            expires_at=None if row.expires_at is None else row.expires_at.astimezone(UTC),
            next_seq=row.next_seq,
            size=row.size,
            meta=bytes.fromhex(row.meta),
            progress=bytes.fromhex(row.progress),
        )

    def _is_owner_alive(self, row: _RunRow) -> bool:
        if row.owner is None or row.host is None or row.pid is None or row.started is None:
            return False
        if row.owner not in self._alive_owners:
            known = is_process_alive(make_process_identity(row.host, row.pid, row.started))
            self._alive_owners[row.owner] = bool(row.heard_from) if known is None else known
        return self._alive_owners[row.owner]


def make_process_identity(host: str, pid: int, started: str) -> ProcessIdentity:
    return ProcessIdentity(host=unescape_text(host), pid=pid, started=unescape_text(started))


def decode_run(result: PGresult, after: int) -> StoredRun | None:
    """The run that `load_run` gave; `None` if there is none.

    Raises:
        RunDamaged: an entry is missing or is not what was written.
    """
    if not result.ntuples:
        return None
    value = result.get_value
    row = _ROW_DECODER.decode(value(0, 3) or b"")
    record = RecordDecoder().from_row(row)
    first = due = max(row.first_seq, after + 1)
    entries: list[Entry] = []
    for n in range(1, result.ntuples):
        seq = decode_int(value(n, 0))
        if seq != due and (entries or seq > due):
            raise RunDamaged(record.run_id, f"entry {due} is missing")
        try:
            entries += unpack_segments([(seq, decode_text(value(n, 1)), decode_int(value(n, 2)), value(n, 3) or b"")])
        except (ValueError, LookupError) as exc:
            raise RunDamaged(record.run_id, f"what begins with entry {seq} is not what was written") from exc
        due = entries[-1].seq + 1
    if due < row.next_seq:
        raise RunDamaged(record.run_id, f"entry {due} is missing")
    if due > max(row.next_seq, after + 1):
        raise RunDamaged(record.run_id, f"there are {due - row.next_seq} entries more than were written")
    earlier = first - entries[0].seq if entries else 0
    return StoredRun(record=record, entries=tuple(entries[earlier:]))


#: Records that a listing reads at a time.
PAGE_SIZE = 500
#: Waiting runs that are looked at first, and how many are named beyond those wanted, in case that others take some.
CANDIDATE_WINDOW, SPARE_CANDIDATES = 300, 16


class Queries:
    """Each is one statement, a transaction of its own."""

    def __init__(self, readers: ReaderPool, sql: SqlFiles) -> None:
        self._readers = readers
        #: The host on which processes are known to be dead or alive.
        self.host = escape_text(this_process().host)
        self._list_runs_sql, self._stale_rows_sql = sql.load_query("records").encode(), sql.load_query("tidy").encode()
        self._candidates_sql = sql.with_schema("select * from holdfast.candidates($1, $2, $3, $4, $5, $6)").encode()
        self._load_sql = sql.with_schema("select seq, layout, checksum, body from holdfast.load_run($1, $2)").encode()
        self._heartbeat_sql = sql.with_schema("select holdfast.beat($1, $2, $3, $4, $5)").encode()
        self._deregister_sql = sql.with_schema("select holdfast.discharge($1)").encode()
        self._workers_sql = sql.with_schema(
            "select worker_id, host, pid, started from holdfast.worker where host = $1"
        ).encode()
        self._expires_in_sql = sql.with_schema(
            "select extract(epoch from expires_at - now())::text from holdfast.run where run_id = $1"
            " and expires_at is not null"
        ).encode()
        self._cancellations_sql = sql.with_schema(
            "select run_id from holdfast.run where owner = $1 and cancel_requested and status = 'running'"
        ).encode()

    async def delete_stale_rows(self) -> None:
        await self._readers.call(self._stale_rows_sql)

    async def register_worker(self, worker: WorkerIdentity, lease_timeout: float) -> None:
        about = (worker.worker_id, worker.process.host, worker.process.started)
        worker_id, host, started = (connection.encode_texts([escape_text(word)]) for word in about)
        await self._readers.call(
            self._heartbeat_sql,
            (connection.TEXTS, connection.TEXTS, connection.BIGINTS, connection.TEXTS, connection.FLOAT),
            (
                worker_id,
                host,
                connection.encode_bigints([worker.process.pid]),
                started,
                connection.encode_float8(lease_timeout),
            ),
        )

    async def deregister_workers(self, worker_ids: Sequence[str]) -> None:
        gone = connection.encode_texts([escape_text(worker_id) for worker_id in worker_ids])
        await self._readers.call(self._deregister_sql, (connection.TEXTS,), (gone,))

    async def dead_local_workers(self) -> list[str]:
        """The workers of this host whose processes are gone, as text: known at once, however late they were heard."""
        result = await self._readers.call(self._workers_sql, (connection.TEXT,), (self.host.encode(),))
        dead = []
        for n in range(result.ntuples):
            worker_id, host, pid, started = (result.get_value(n, column) for column in range(4))
            if (
                is_process_alive(make_process_identity(decode_text(host), decode_int(pid), decode_text(started)))
                is False
            ):
                dead.append(decode_text(worker_id))
        return dead

    async def load(self, run_id: str, after: int) -> StoredRun | None:
        types, values = (
            (connection.TEXT, connection.BIGINT),
            (escape_text(run_id).encode(), connection.encode_bigint(after)),
        )
        return decode_run(await self._readers.call(self._load_sql, types, values), after)

    async def expires_in(self, run_id: str) -> float | None:
        """Seconds until the run may be purged."""
        result = await self._readers.call(self._expires_in_sql, (connection.TEXT,), (escape_text(run_id).encode(),))
        return float(decode_text(result.get_value(0, 0))) if result.ntuples else None

    async def list_runs(self, filter: RunFilter) -> AsyncIterator[RunRecord]:
        """Page by page, so that a consumer who takes his time holds nothing up."""
        dead = await self.dead_local_workers() if filter.interrupted else []
        statuses = (
            None if filter.statuses is None else connection.encode_texts([status.value for status in filter.statuses])
        )
        types = (
            *(connection.BIGINT, connection.BIGINT, connection.BOOL, connection.TEXT, connection.TEXTS),
            *(connection.TEXTS, connection.TEXT, connection.TEXT, connection.TEXT),
        )
        filters = [
            b"\1" if filter.interrupted else b"\0",
            self.host.encode(),
            connection.encode_texts(dead),
            statuses,
        ] + [
            None if name is None else escape_text(name).encode()
            for name in (filter.agent_name, filter.caller_id, filter.parent_run_id)
        ]
        after = -1
        while True:
            values = (connection.encode_bigint(after), connection.encode_bigint(PAGE_SIZE), *filters)
            result = await self._readers.call(self._list_runs_sql, types, values)
            reader = RecordDecoder()
            for n in range(result.ntuples):
                yield reader.decode(result.get_value(n, 0) or b"")
            if result.ntuples < PAGE_SIZE:
                return
            after = decode_int(result.get_value(PAGE_SIZE - 1, 1))

    async def find_candidates(
        self, agents: Sequence[str], limit: int, dead: Sequence[str], *, exclude: Sequence[int]
    ) -> list[int]:
        """The keys of runs that may be taken now, in the order in which they should be, and a few more than wanted."""
        types = (
            connection.TEXTS,
            connection.BIGINTS,
            connection.BIGINT,
            connection.TEXT,
            connection.TEXTS,
            connection.BIGINT,
        )
        values = (
            *(
                connection.encode_texts([escape_text(agent) for agent in agents]),
                connection.encode_bigints(exclude),
                connection.encode_bigint(limit + SPARE_CANDIDATES),
            ),
            *(self.host.encode(), connection.encode_texts(dead)),
        )
        result = await self._readers.call(
            self._candidates_sql, types, (*values, connection.encode_bigint(CANDIDATE_WINDOW))
        )
        if result.ntuples:
            seen, callers = decode_int(result.get_value(0, 1)), decode_int(result.get_value(0, 2))
            # The oldest runs of all tell which are the oldest of their callers, but not whether a younger run is the
            # first of a caller that is not among them.
            if seen >= CANDIDATE_WINDOW and callers < limit:
                result = await self._readers.call(self._candidates_sql, types, (*values, None))
        return [decode_int(result.get_value(n, 0)) for n in range(result.ntuples)]

    async def pending_cancellations(self, worker_id: str) -> list[str]:
        result = await self._readers.call(
            self._cancellations_sql, (connection.TEXT,), (escape_text(worker_id).encode(),)
        )
        return [unescape_text(decode_text(result.get_value(n, 0))) for n in range(result.ntuples)]
