"""Drafts: single statements on unlogged tables, beside the group commit."""

from datetime import timedelta

from holdfast.checkpoint.workers import Claim
from holdfast.stores.postgres.database import ReaderPool, SqlFiles, escape_text

_PUT_SQL = """
insert into holdfast.draft (run, token, body)
select id, token, $3::bytea from holdfast.run where run_id = $1 and token = $2::bigint and status = 'running'
on conflict (run) do update set token = excluded.token, body = excluded.body
"""

_DROP_SQL = """
delete from holdfast.draft d using holdfast.run r where r.run_id = $1 and d.run = r.id and d.token = $2::bigint
"""

_READ_SQL = """
select d.body from holdfast.run r join holdfast.draft d on d.run = r.id
where r.run_id = $1 and d.token = r.token and r.status = 'running'
"""

_REQUEST_SQL = """
insert into holdfast.draft_request as known (run_id, until)
values ($1, now() + make_interval(secs => $2::float8))
on conflict (run_id) do update set until = greatest(known.until, excluded.until)
"""


class Drafts:
    """Keeps the drafts of runs."""

    def __init__(self, connections: ReaderPool, sql: SqlFiles) -> None:
        self._connections = connections
        self._put_sql, self._drop_sql = sql.with_schema(_PUT_SQL), sql.with_schema(_DROP_SQL)
        self._read_sql, self._request_sql = sql.with_schema(_READ_SQL), sql.with_schema(_REQUEST_SQL)

    async def put(self, claim: Claim, draft: bytes | None) -> None:
        run_id = escape_text(claim.run_id)
        if draft is None:
            await self._connections.execute(self._drop_sql, (run_id, claim.token))
        else:
            await self._connections.execute(self._put_sql, (run_id, claim.token, draft))

    async def read(self, run_id: str) -> bytes | None:
        rows = await self._connections.execute(self._read_sql, (escape_text(run_id),))
        return rows[0][0] if rows else None

    async def request(self, run_id: str, keep_for: timedelta) -> None:
        await self._connections.execute(self._request_sql, (escape_text(run_id), keep_for.total_seconds()))
