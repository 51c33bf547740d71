"""Listings: records by filter, page by page."""

import re
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.errors import InvalidCursor
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, RunFilter, RunPage, RunRecord, RunStatus
from holdfast.stores.postgres.database import ReaderPool, SqlFiles, escape_text
from holdfast.stores.postgres.records import RecordDecoder

#: Records that a stream reads at a time.
PAGE_SIZE = 500

#: Where a page continues: the creation time and the key of a run.
_Position = tuple[datetime, int]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_CURSOR = re.compile(r"([0-9]{1,17})-([0-9]{1,18})", re.ASCII)
#: Before every run.
_START = (datetime.max.replace(tzinfo=UTC), 2**62)


class Listing:
    """Runs each page as one statement, so that a slow consumer holds no connection."""

    def __init__(self, readers: ReaderPool, sql: SqlFiles, host: str) -> None:
        self._readers, self._host = readers, host
        self._sql = sql.with_schema("select * from holdfast.list_runs($1::jsonb, $2::text, $3::text[])")

    async def stream(self, filter: RunFilter, dead: Sequence[str]) -> AsyncIterator[RunRecord]:
        """Yield the records that fit, oldest first."""
        position: _Position | None = None
        while True:
            records, position = await self._read(filter, dead, PAGE_SIZE, position, newest_first=False)
            for record in records:
                yield record
            if position is None:
                return

    async def read_page(self, filter: RunFilter, dead: Sequence[str], limit: int, cursor: str | None) -> RunPage:
        """Return a page, newest first. Raises `InvalidCursor`."""
        position = None if cursor is None else _parse_cursor(cursor)
        records, position = await self._read(filter, dead, max(limit, 0), position, newest_first=True)
        return RunPage(records=records, cursor=None if position is None else _format_cursor(position))

    async def _read(
        self, filter: RunFilter, dead: Sequence[str], limit: int, position: _Position | None, *, newest_first: bool
    ) -> tuple[tuple[RunRecord, ...], _Position | None]:
        """Return up to `limit` records after `position`, and where to continue if there are more."""
        about = _encode_filter(filter) | {"newest_first": newest_first, "limit": limit + 1}
        if position is not None:
            about |= {"from_time": position[0].isoformat(), "from_id": position[1]}
        params = (msgspec.json.encode(about).decode(), self._host, list(dead))
        rows = await self._readers.execute(self._sql, params)
        decoder = RecordDecoder()
        records = tuple(decoder.decode(encoded) for encoded, _, _ in rows[:limit])
        if len(rows) <= limit:
            return records, None
        return records, rows[limit - 1][1:] if limit else position or _START


def _encode_filter(filter: RunFilter) -> dict[str, Any]:
    """Return the filter as `list_runs.sql` takes it: without the fields that are not set."""
    names = {
        "agent_name": filter.agent_name,
        "caller_id": filter.caller_id,
        "parent_run_id": filter.parent_run_id,
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
