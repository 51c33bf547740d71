"""Verdicts: recorded decisions about runs, such as which of several results a person has picked."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.clock import CLOCK
from holdfast.db.tables import Cursor, Schema

#: The name of the verdict that says which result was picked.
PICK = "pick"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Rows whose runs are looked up in one go.
_BATCH = 200

SCHEMA = Schema(
    name="verdict",
    migrations=[
        [
            "CREATE TABLE verdict (run_id TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, "
            "decided_by TEXT NOT NULL, at BIGINT NOT NULL)",
            "CREATE INDEX verdict_run ON verdict (run_id, name, at)",
        ]
    ],
)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about a run. Of several with one name, the newest counts."""

    run_id: str
    name: str
    #: For a pick: the id of a model of the fan-out, or the id of a run.
    value: str
    by: str
    at: datetime


async def record_verdict(store: RunStore, run_id: str, name: str, value: str, *, by: str) -> None:
    """Record a decision about a run of the open store, durably. An empty value takes an earlier one back."""
    at = (CLOCK.get().now() - _EPOCH) // timedelta(microseconds=1)

    async def work(cursor: Cursor) -> None:
        # Later than every earlier one, although the clocks of two hosts differ.
        [(newest,)] = await cursor.execute("SELECT max(at) FROM verdict WHERE run_id = ? AND name = ?", (run_id, name))
        row = (run_id, name, value, by, at if newest is None else max(at, newest + 1))
        await cursor.execute("INSERT INTO verdict (run_id, name, value, decided_by, at) VALUES (?, ?, ?, ?, ?)", row)

    tables = store.tables()
    await tables.open(SCHEMA)
    await tables.transaction(work, lock=[f"verdict {run_id}"])


async def read_verdict(store: RunStore, run_id: str, name: str) -> Verdict | None:
    """Return the newest decision of this name about a run; `None` if there is none, or it was taken back."""

    async def work(cursor: Cursor) -> Sequence[tuple[Any, ...]]:
        return await cursor.execute(
            "SELECT value, decided_by, at FROM verdict WHERE run_id = ? AND name = ? ORDER BY at DESC LIMIT 1",
            (run_id, name),
        )

    if not await _open_existing(store):
        return None
    for value, by, at in await store.tables().read(work):
        if value:
            return Verdict(run_id=run_id, name=name, value=value, by=by, at=_EPOCH + timedelta(microseconds=at))
    return None


async def remove_verdicts(store: RunStore, run_id: str) -> None:
    """Remove the decisions about a run that is removed."""

    async def work(cursor: Cursor) -> None:
        await cursor.execute("DELETE FROM verdict WHERE run_id = ?", (run_id,))

    if await _open_existing(store):
        await store.tables().transaction(work)


async def purge_verdicts(store: RunStore, after: str = "") -> str:
    """Remove the decisions about runs that no longer exist, of the next runs after the id `after`.

    Returns the id to continue with; empty at the end.
    """

    async def work(cursor: Cursor) -> Sequence[tuple[Any, ...]]:
        return await cursor.execute(
            "SELECT DISTINCT run_id FROM verdict WHERE run_id > ? ORDER BY run_id LIMIT ?", (after, _BATCH)
        )

    if not await _open_existing(store):
        return ""
    run_ids = [run_id for (run_id,) in await store.tables().read(work)]
    for run_id in run_ids:
        try:
            await get_record(store, run_id)
        except RunNotFound:
            await remove_verdicts(store, run_id)
    return run_ids[-1] if len(run_ids) == _BATCH else ""


async def _open_existing(store: RunStore) -> bool:
    """Open the table if there is one. A reader creates none."""
    tables = store.tables()
    if not await tables.read_version(SCHEMA):
        return False
    await tables.open(SCHEMA)
    return True
