"""The statements of a store beside its group commit, and the decoding of their rows."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.checkpoint.claim import ProcessIdentity, WorkerIdentity, is_process_alive, this_process
from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Entry, unpack_segments
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.db.postgres_connection import Rows
from holdfast.stores.postgres.database import ReaderPool, SqlFiles, escape_text, unescape_text
from holdfast.stores.postgres.heartbeat import REGISTER_SQL, register_params


class _RunRow(msgspec.Struct, frozen=True):
    """The result of `record.sql`. Bytes are hexadecimal digits."""

    run_id: str
    agent_name: str
    caller_id: str
    parent_run_id: str | None
    status: RunStatus
    created_at: datetime
    updated_at: datetime
    owner: str | None
    #: Of the owner, while the run is running and the owner is registered.
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
    """Makes records of rows that were read at one moment. Checks once for each worker whether it is alive."""

    def __init__(self) -> None:
        self._alive_owners: dict[str, bool] = {}

    def decode(self, encoded: str | bytes) -> RunRecord:
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


def decode_run(rows: Rows, after: int) -> StoredRun | None:
    """Return the run in the rows of `load_run`; `None` if there is none.

    Raises:
        RunDamaged: an entry is missing or was changed.
    """
    if not rows:
        return None
    row = _ROW_DECODER.decode(rows[0][3])
    record = RecordDecoder().from_row(row)
    first = due = max(row.first_seq, after + 1)
    entries: list[Entry] = []
    for seq, layout, checksum, body in rows[1:]:
        if seq != due and (entries or seq > due):
            raise RunDamaged(record.run_id, f"entry {due} is missing")
        try:
            entries += unpack_segments([(seq, layout, checksum, body)])
        except (ValueError, LookupError) as exc:
            raise RunDamaged(record.run_id, f"the row that begins with entry {seq} was changed") from exc
        due = entries[-1].seq + 1
    if due < row.next_seq:
        raise RunDamaged(record.run_id, f"entry {due} is missing")
    if due > max(row.next_seq, after + 1):
        raise RunDamaged(record.run_id, f"there are {due - row.next_seq} entries more than were written")
    earlier = first - entries[0].seq if entries else 0
    return StoredRun(record=record, entries=tuple(entries[earlier:]))


#: Records that a listing reads at a time.
PAGE_SIZE = 500
#: How many of the oldest runs to look at first, and how many candidates to return beyond the limit, because other
#: workers may take some of them.
CANDIDATE_WINDOW, SPARE_CANDIDATES = 300, 16


class Queries:
    """Runs each query as one statement, which is a transaction of its own."""

    def __init__(self, readers: ReaderPool, sql: SqlFiles) -> None:
        self._readers, self._sql = readers, sql
        #: This host: it knows which of its own processes are alive.
        self.host = escape_text(this_process().host)
        self._list_runs_sql = sql.load_query("list_runs")
        self._candidates_sql = sql.with_schema(
            "select * from holdfast.candidates($1::text[], $2::bigint[], $3::bigint, $4::text, $5::text[], $6::bigint)"
        )
        self._load_sql = sql.with_schema("select seq, layout, checksum, body from holdfast.load_run($1, $2::bigint)")
        self._workers_sql = sql.with_schema("select worker_id, host, pid, started from holdfast.worker where host = $1")

    async def delete_stale_rows(self) -> None:
        await self._readers.execute(self._sql.load_query("delete_stale_rows"))

    async def register_worker(self, worker: WorkerIdentity, lease_timeout: timedelta) -> None:
        await self._execute(REGISTER_SQL, *register_params([worker], lease_timeout))

    async def deregister_workers(self, worker_ids: Sequence[str]) -> None:
        gone = [escape_text(worker_id) for worker_id in worker_ids]
        await self._execute("select holdfast.discharge($1::text[])", gone)

    async def dead_local_workers(self) -> list[str]:
        """Return the workers of this host whose processes have ended, escaped. Their leases do not count."""
        return [
            worker_id
            for worker_id, host, pid, started in await self._readers.execute(self._workers_sql, [self.host])
            if is_process_alive(make_process_identity(host, pid, started)) is False
        ]

    async def load(self, run_id: str, after: int) -> StoredRun | None:
        return decode_run(await self._readers.execute(self._load_sql, (escape_text(run_id), after)), after)

    async def expires_in(self, run_id: str) -> float | None:
        """Return the seconds until the run may be purged."""
        rows = await self._execute(
            "select extract(epoch from expires_at - now())::float8 from holdfast.run"
            " where run_id = $1 and expires_at is not null",
            escape_text(run_id),
        )
        return rows[0][0] if rows else None

    async def list_runs(self, filter: RunFilter) -> AsyncIterator[RunRecord]:
        """Yield page by page, so that a slow consumer holds no connection."""
        dead = await self.dead_local_workers() if filter.interrupted else []
        statuses = None if filter.statuses is None else [status.value for status in filter.statuses]
        names = [
            None if name is None else escape_text(name)
            for name in (filter.agent_name, filter.caller_id, filter.parent_run_id)
        ]
        after = -1
        while True:
            params = (after, PAGE_SIZE, filter.interrupted, self.host, dead, statuses, *names)
            rows = await self._readers.execute(self._list_runs_sql, params)
            decoder = RecordDecoder()
            for encoded, _ in rows:
                yield decoder.decode(encoded)
            if len(rows) < PAGE_SIZE:
                return
            after = rows[-1][1]

    async def find_candidates(
        self, agents: Sequence[str], limit: int, dead: Sequence[str], *, exclude: Sequence[int]
    ) -> list[int]:
        """Return the keys of runs that may be claimed now, in order, and a few more than `limit`."""
        names = [escape_text(agent) for agent in agents]
        params = (names, list(exclude), limit + SPARE_CANDIDATES, self.host, list(dead))
        rows = await self._readers.execute(self._candidates_sql, (*params, CANDIDATE_WINDOW))
        if rows:
            _, seen, callers = rows[0]
            # Runs of further callers may lie outside the window. Fairness needs them if the window has too few callers.
            if seen >= CANDIDATE_WINDOW and callers < limit:
                rows = await self._readers.execute(self._candidates_sql, (*params, None))
        return [row[0] for row in rows]

    async def pending_cancellations(self, worker_id: str) -> list[str]:
        rows = await self._execute(
            "select run_id from holdfast.run where owner = $1 and cancel_requested and status = 'running'",
            escape_text(worker_id),
        )
        return [unescape_text(run_id) for (run_id,) in rows]

    async def _execute(self, statement: str, *params: object) -> Rows:
        return await self._readers.execute(self._sql.with_schema(statement), params)
