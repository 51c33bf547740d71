"""What is asked of the database without changing it."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import apsw
import msgspec

from holdfast.checkpoint.errors import RunDamaged, RunNotFound
from holdfast.checkpoint.inspection import Inspection
from holdfast.checkpoint.journal import Entry
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import RunFilter, RunRecord, StoredRun
from holdfast.checkpoint.stores.sqlite.database import Database
from holdfast.checkpoint.stores.sqlite.inspection import inspect
from holdfast.checkpoint.stores.sqlite.reading import ReadingThreads
from holdfast.checkpoint.stores.sqlite.records import journal_from, keys_in, record_from
from holdfast.checkpoint.stores.sqlite.statements import statement
from holdfast.checkpoint.stores.sqlite.transaction import Execute
from holdfast.checkpoint.stores.sqlite.workers import Liveness
from holdfast.clock import Clock

#: Records read at once. Between two pages no transaction is open: one that stays open keeps the log from starting over.
_PAGE = 500

_LOAD_RECORD, _READ_PIECE, _READ_PIECES = (statement(name) for name in ("load_record", "read_piece", "read_pieces"))


class Reader:
    """Reads runs and records."""

    def __init__(self, database: Database, clock: Clock, dead_after: timedelta) -> None:
        self._database = database
        self._clock = clock
        self._dead_after = dead_after
        self._threads = ReadingThreads(database, asyncio.get_running_loop())

    async def load(self, run_id: str, after: int) -> StoredRun:
        return await self._threads.do(lambda execute: self._load(execute, run_id, after))

    async def cancels(self, worker_id: str) -> tuple[str, ...]:
        return await self._threads.do(
            lambda execute: tuple(row[0] for row in execute(statement("cancels"), (worker_id,)).fetchall())
        )

    async def records(self, wanted: RunFilter) -> AsyncIterator[RunRecord]:
        last_key: int | None = -1
        while last_key is not None:
            reached = last_key
            records, last_key = await self._threads.do(lambda execute: self._page(execute, wanted, reached))  # noqa: B023
            for record in records:
                yield record

    async def inspect(self) -> Inspection:
        return await self._threads.do(lambda execute: inspect(execute, self._database.path))

    async def close(self) -> None:
        """Let the reads under way end, then let go of everything."""
        await self._threads.stop()

    # -- in a thread --------------------------------------------------------------------------------------------------

    def _load(self, execute: Execute, run_id: str, after: int) -> StoredRun:
        row = execute(_LOAD_RECORD, (run_id,)).get
        if row is None:
            raise RunNotFound(run_id)
        first_seq, last_piece, *columns = row
        liveness = Liveness(execute, self._clock.now(), self._dead_after)
        try:
            record = record_from(columns, columns[5] == Status.RUNNING and liveness.alive(columns[8]))
        except (ValueError, OverflowError, TypeError) as exc:
            raise RunDamaged(run_id, f"its record is not what was written ({exc})") from exc
        seqs = range(max(first_seq, after + 1), record.next_seq)
        try:
            entries = self._journal(execute, columns[0], run_id, last_piece, seqs) if seqs else ()
        except (apsw.CorruptError, UnicodeDecodeError, TypeError) as exc:  # the last: what was a number is none now
            raise RunDamaged(run_id, f"its part of the file cannot be read ({exc})") from exc
        return StoredRun(record=record, entries=entries)

    def _journal(self, execute: Execute, run_key: int, run_id: str, last_piece: int, seqs: range) -> tuple[Entry, ...]:
        """Backwards from piece to piece, as far as is asked for; then all that the way passed over, at once."""
        pieces: list[tuple[Any, ...]] = []
        passed: list[str] = []
        key = last_piece
        # A statement for every piece on the way takes half as long as a recursive one for all.
        while (found := execute(_READ_PIECE, (key, run_key)).get) is not None:
            before, names, seq = found[:3]
            pieces.append(found[2:])
            # Keys have to fall: damage makes no circles.
            if seq <= seqs.start or not 0 < before < key:
                break
            if names is not None:
                passed.append(names)
            key = before
        if passed:
            keys = msgspec.json.encode(keys_in(passed, run_id)).decode()
            # All rows at once: a statement left in the middle would keep its view of the database.
            pieces += execute(_READ_PIECES, (keys, run_key)).fetchall()
        return journal_from(pieces, run_id, seqs)

    def _page(self, execute: Execute, wanted: RunFilter, after: int) -> tuple[list[RunRecord], int | None]:
        """The next records that fit, and the key to go on from; `None` if these were the last."""
        statuses = None if wanted.statuses is None else json.dumps(sorted(wanted.statuses))
        bindings = (after, statuses, wanted.agent_name, wanted.caller_id, _PAGE, wanted.parent_run_id)
        what = "list_runs" if wanted.parent_run_id is None else "list_children"
        rows = execute(
            statement("list_unfinished" if wanted.interrupted else what),
            bindings if what == "list_children" or wanted.interrupted else bindings[:5],
        ).fetchall()
        alive = Liveness(execute, self._clock.now(), self._dead_after).all_alive()
        records = [record_from(row, row[8] in alive) for row in rows]
        if wanted.interrupted:
            records = [record for record in records if record.interrupted]
        return records, rows[-1][0] if len(rows) == _PAGE else None
