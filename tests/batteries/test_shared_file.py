"""One SQLite file for the checkpoints and for batteries, whichever comes first."""

from pathlib import Path

import apsw

from holdfast.batteries.schedule import TablesJobs
from holdfast.db.url import tables_from_url
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.store_suite.store_under_test import list_run_ids, make_run


async def _job_store(path: Path) -> None:
    jobs = TablesJobs(tables_from_url(f"sqlite:{path}"))
    await jobs.open()
    await jobs.close()


async def _checkpoints(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.create(make_run())
    assert await list_run_ids(store) == ["run-1"]
    await store.close()


def _begun(path: Path) -> tuple[object, ...]:
    connection = apsw.Connection(str(path))
    try:
        names = ("application_id", "page_size", "auto_vacuum", "journal_mode", "user_version")
        return tuple(connection.pragma(name) for name in names)
    finally:
        connection.close()


async def test_a_file_that_a_battery_began_is_the_same_as_one_that_the_checkpoints_began(tmp_path: Path) -> None:
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    await _job_store(one)
    await _checkpoints(one)
    await _checkpoints(other)
    await _job_store(other)
    assert _begun(one) == _begun(other)
