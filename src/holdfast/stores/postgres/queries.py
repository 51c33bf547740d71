"""Statements beside the group commit: reads, pages, counts."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.errors import InvalidCursor
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, Pending, RunFilter, RunPage, RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.workers import (
    CountedRow,
    Fleet,
    LimitUsage,
    WorkerHeartbeat,
    WorkerIdentity,
    decode_agents,
    is_process_alive,
    make_limit,
    merge_rows,
    this_process,
)
from holdfast.config import LimitKind
from holdfast.db.postgres_connection import Rows
from holdfast.stores.postgres.database import ReaderPool, SqlFiles, escape_text, unescape_text
from holdfast.stores.postgres.heartbeat import DEREGISTER_SQL, REGISTER_SQL, register_params
from holdfast.stores.postgres.records import RecordDecoder, decode_run, make_process_identity

#: Where a page continues: the creation time and the key of a run.
_Position = tuple[datetime, int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CURSOR = re.compile(r"([0-9]{1,17})-([0-9]{1,18})", re.ASCII)
#: Beyond every run.
_NEWEST, _OLDEST = (datetime.max.replace(tzinfo=UTC), 2**62), (_EPOCH, 0)


class Listing:
    """Runs each page as one statement, so that a slow consumer holds no connection."""

    def __init__(self, readers: ReaderPool, sql: SqlFiles, host: str) -> None:
        self._readers, self._host = readers, host
        self._sql = sql.with_schema("select * from holdfast.list_runs($1::jsonb, $2::text, $3::text[])")

    async def read_page(
        self, filter: RunFilter, dead: Sequence[str], limit: int, cursor: str | None, *, oldest_first: bool
    ) -> RunPage:
        """Return a page. Raises `InvalidCursor`."""
        position = None if cursor is None else _parse_cursor(cursor)
        records, position = await self._read(filter, dead, max(limit, 0), position, newest_first=not oldest_first)
        return RunPage(records=records, cursor=None if position is None else _format_cursor(position))

    async def _read(
        self, filter: RunFilter, dead: Sequence[str], limit: int, position: _Position | None, *, newest_first: bool
    ) -> tuple[tuple[RunRecord, ...], _Position | None]:
        """Return up to `limit` records after `position`, and where to continue if there are more."""
        about = _encode_filter(filter) | {"newest_first": newest_first, "limit": limit + 1}
        if position is not None:
            about |= {"from_time": position[0].isoformat(), "from_id": position[1]}
        params = (msgspec.json.encode(about).decode(), self._host, list(dead))
        rows = await self._readers.read(self._sql, params)
        decoder = RecordDecoder()
        records = tuple(decoder.decode(encoded, created_at) for encoded, created_at, _ in rows[:limit])
        if len(rows) <= limit:
            return records, None
        return records, rows[limit - 1][1:] if limit else position or (_NEWEST if newest_first else _OLDEST)


def _encode_filter(filter: RunFilter) -> dict[str, Any]:
    """Return the filter as `list_runs.sql` takes it: without the fields that are not set."""
    names = {
        "agent_name": filter.agent_name,
        "caller_id": filter.caller_id,
        "parent_run_id": filter.parent_run_id,
        "tenant": filter.tenant,
    }
    times = {"created_after": filter.created_after, "created_before": filter.created_before}
    about: dict[str, Any] = {
        "interrupted": filter.interrupted,
        "labels": {escape_text(name): escape_text(value) for name, value in filter.labels.items()},
    }
    statuses = frozenset(RunStatus) if filter.statuses is None else frozenset(filter.statuses)
    if filter.interrupted:
        statuses &= CLAIMABLE_STATUSES
    if filter.interrupted or filter.statuses is not None:
        about["statuses"] = sorted(statuses)
    about |= {field: escape_text(name) for field, name in names.items() if name is not None}
    return about | {field: time.isoformat() for field, time in times.items() if time is not None}


def _format_cursor(position: _Position) -> str:
    created_at, key = position
    return f"{(created_at - _EPOCH) // _MICROSECOND}-{key}"


def _parse_cursor(cursor: str) -> _Position:
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InvalidCursor(cursor)
    try:
        return _EPOCH + int(found[1]) * _MICROSECOND, int(found[2])
    except OverflowError:
        raise InvalidCursor(cursor) from None


#: How many due runs of each agent to look at first, and how many candidates to return beyond the limit, because other
#: workers may take some of them.
CANDIDATE_WINDOW, SPARE_CANDIDATES = 300, 16


#: The workers that are alive are looked up once each, not for each of their runs.
_COUNT_RUNS = """
select agent_name, status, holder is not null and holdfast.alive(holder, $1::text, $2::text[]), count, due, oldest
from (
    select agent_name, status, case when status = 'running' then owner end as holder, count(*) as count,
        count(*) filter (where not_before <= now()) as due,
        min(updated_at) filter (where not_before <= now()) as oldest
    from holdfast.run group by 1, 2, 3
) as counted
"""


_PENDING = """
(select 'mail', run_id from holdfast.run where owner = $1 and has_mail and status = 'running' order by id)
union all
select 'cancel', run_id from holdfast.run where owner = $1 and cancel_requested and status = 'running'
union all
select 'draft', r.run_id from holdfast.draft_request d join holdfast.run r on r.run_id = d.run_id
where d.until > now() and r.owner = $1 and r.status = 'running'
"""

#: All parts of a statement see what was there before it.
_SET_LIMIT = """
with changed as (
    insert into holdfast.run_limit as l (kind, name, max_runs, is_default)
    values ($1, $2, $4::integer, $3::boolean)
    on conflict (kind, name) do update set max_runs = excluded.max_runs, is_default = excluded.is_default
    where l.is_default or not excluded.is_default
    returning 1
)
select exists (select from holdfast.run_limit where kind = $1 and name = $2), pg_notify('holdfast', '')
from (select count(*) from changed) as done
"""

_REMOVE_LIMIT = """
with removed as (
    delete from holdfast.run_limit where kind = $1 and name = $2 and (is_default or not $3::boolean) returning 1
)
select exists (select from holdfast.run_limit where kind = $1 and name = $2), pg_notify('holdfast', '')
from (select count(*) from removed) as done
"""


class Queries:
    """Runs each query as one statement, which is a transaction of its own."""

    def __init__(self, readers: ReaderPool, sql: SqlFiles) -> None:
        self._readers, self._sql = readers, sql
        #: This host: it knows which of its own processes are alive.
        self.host = escape_text(this_process().host)
        self._listing = Listing(readers, sql, self.host)
        self._next_runs_sql = sql.with_schema(
            "select * from holdfast.next_runs("
            "$1::text[], $2::bigint[], $3::bigint, $4::bigint, $5::text, $6::text[], $7::bigint)"
        )
        self._load_sql = sql.with_schema("select seq, layout, checksum, body from holdfast.load_run($1, $2::bigint)")
        self._workers_sql = sql.with_schema("select worker_id, host, pid, started from holdfast.worker where host = $1")

    async def delete_stale_rows(self) -> None:
        await self._readers.execute(self._sql.load_query("delete_stale_rows"))

    async def register_worker(self, worker: WorkerIdentity, lease_timeout: timedelta) -> None:
        await self._execute(REGISTER_SQL, *register_params([worker], lease_timeout))

    async def deregister_workers(self, worker_ids: Sequence[str]) -> None:
        gone = [escape_text(worker_id) for worker_id in worker_ids]
        await self._execute(DEREGISTER_SQL, gone)

    async def dead_local_workers(self) -> list[str]:
        """Return the workers of this host whose processes have ended, escaped. Their leases do not count."""
        return [
            worker_id
            for worker_id, host, pid, started in await self._readers.execute(self._workers_sql, [self.host])
            if is_process_alive(make_process_identity(host, pid, started)) is False
        ]

    async def read_fleet(self) -> Fleet:
        counts = await self._read(_COUNT_RUNS, self.host, await self.dead_local_workers())
        return Fleet(
            workers=await self.list_workers(),
            counts=merge_rows(
                CountedRow(unescape_text(agent), RunStatus(status), *more) for agent, status, *more in counts
            ),
        )

    async def list_workers(self) -> list[WorkerHeartbeat]:
        """Return all registered workers, ordered by id."""
        rows = await self._execute(
            "select w.worker_id, w.host, w.pid, w.started, w.agents, w.alive_until - w.dead_after,"
            " holdfast.heard_from(w) from holdfast.worker w order by w.worker_id"
        )
        found: list[WorkerHeartbeat] = []
        for worker_id, host, pid, started, agents, last_at, heard_from in rows:
            worker = WorkerIdentity(
                worker_id=unescape_text(worker_id),
                process=make_process_identity(host, pid, started),
                agents=decode_agents(agents),
            )
            known = is_process_alive(worker.process)
            found.append(WorkerHeartbeat(worker=worker, alive=heard_from if known is None else known, last_at=last_at))
        return found

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

    async def list_page(self, filter: RunFilter, limit: int, cursor: str | None, *, oldest_first: bool) -> RunPage:
        dead = await self.dead_local_workers() if filter.interrupted else []
        return await self._listing.read_page(filter, dead, limit, cursor, oldest_first=oldest_first)

    async def find_candidates(
        self, agents: Sequence[str], limit: int, dead: Sequence[str], *, exclude: Sequence[int]
    ) -> list[int]:
        """Return the keys of runs that may be claimed now, in order, and a few more than `limit`."""
        names = [escape_text(agent) for agent in agents]
        params = (names, list(exclude), limit + SPARE_CANDIDATES, limit, self.host, list(dead), CANDIDATE_WINDOW)
        return [run for (run,) in await self._readers.execute(self._next_runs_sql, params)]

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool) -> bool:
        statement = _REMOVE_LIMIT if max_runs is None else _SET_LIMIT
        params = [kind, escape_text(name), default, *([] if max_runs is None else [max_runs])]
        [(existed, _)] = await self._execute(statement, *params)
        return bool(existed)

    async def list_limits(self) -> list[LimitUsage]:
        rows = await self._read(
            "select kind, name, max_runs, used, is_default from holdfast.slots($1::text, $2::text[])"
            " order by kind, name",
            self.host,
            await self.dead_local_workers(),
        )
        return [
            LimitUsage(limit=make_limit(kind, unescape_text(name), max_runs), running=used, is_default=is_default)
            for kind, name, max_runs, used, is_default in rows
        ]

    async def pending(self, worker_id: str) -> Pending:
        rows = await self._execute(_PENDING, escape_text(worker_id))
        mail, cancels, drafts = [
            tuple(unescape_text(run_id) for found, run_id in rows if found == kind)
            for kind in ("mail", "cancel", "draft")
        ]
        return Pending(mail=mail, cancels=cancels, drafts=drafts)

    async def _read(self, statement: str, *params: object) -> Rows:
        return await self._readers.read(self._sql.with_schema(statement), params)

    async def _execute(self, statement: str, *params: object) -> Rows:
        return await self._readers.execute(self._sql.with_schema(statement), params)
