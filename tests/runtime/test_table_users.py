"""Where the batteries of an App keep their rows, and what the log says of it."""

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.checkpoint.store import RunStore
from holdfast.db.sqlite_tables import MemoryTables
from holdfast.db.tables import Tables, TablesError, TablesUnavailable
from holdfast.runtime.table_users import TableUsers
from holdfast.stores.from_url import store_from_url
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock


class Battery:
    """Notes the tables that it is opened with. May fail, or take its time."""

    def __init__(
        self, tables: Tables | None = None, error: Exception | None = None, takes: timedelta = timedelta(0)
    ) -> None:
        self.tables, self._error, self._takes = tables, error, takes
        self.clock = ManualClock()
        self.opened: list[Tables] = []
        self.closed = 0

    async def open(self, tables: Tables) -> None:
        self.opened.append(tables)
        await self.clock.sleep(self._takes)
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        self.closed += 1


async def open_all(store: RunStore | None, *batteries: Battery) -> None:
    users = TableUsers([*batteries, object()], store, ManualClock())
    await users.open()
    await users.close()


class DurableStore(MemoryStore):
    """A host's own table: its checkpoints survive, and other rows do not."""

    durable = True


@pytest.mark.parametrize(("store", "level"), [(None, "INFO"), (MemoryStore(), "INFO"), (DurableStore(), "WARNING")])
async def test_rows_in_memory_are_reported_and_louder_if_the_runs_survive(
    store: RunStore | None, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="holdfast.app")
    first, second, own = Battery(), Battery(), Battery(MemoryTables())
    await open_all(store, first, second, own)
    assert first.opened == second.opened
    assert isinstance(first.opened[0], MemoryTables)
    if store is not None:
        assert first.opened == [store.tables()]
    assert own.opened == [own.tables], "the user has named this place"
    said = [(record.levelname, record.message) for record in caplog.records]
    assert said == [(level, "Battery keeps its rows in memory: they do not survive this process")] * 2
    assert [each.closed for each in (first, second, own)] == [1, 1, 1]


async def test_rows_that_survive_are_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="holdfast.app")
    store, battery = store_from_url(f"sqlite:{tmp_path / 'runs.db'}"), Battery()
    await open_all(store, battery)
    assert battery.opened == [store.tables()]
    assert caplog.records == []


async def test_tables_that_do_not_answer_are_tried_again_later(caplog: pytest.LogCaptureFixture) -> None:
    slow, away, fine = Battery(takes=timedelta(hours=1)), Battery(error=TablesUnavailable("away")), Battery()
    clock = ManualClock()
    users = TableUsers([slow, away, fine], MemoryStore(), clock)
    task = asyncio.create_task(users.open())
    await clock.advance(timedelta(seconds=4.9))
    assert not task.done()
    assert away.opened == []
    await clock.advance(timedelta(seconds=0.2))
    await task
    assert len(fine.opened) == 1
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "the tables of Battery do not answer, will retry when they are used",
        "the tables of Battery cannot be opened, will retry when they are used: away",
    ]
    await users.close()


async def test_tables_that_cannot_be_used_close_all_batteries() -> None:
    first, refused, never = Battery(), Battery(error=TablesError("newer")), Battery()
    users = TableUsers([first, refused, never], MemoryStore(), ManualClock())
    with pytest.raises(TablesError, match="newer"):
        await users.open()
    assert never.opened == []
    assert (first.closed, refused.closed) == (1, 1)
