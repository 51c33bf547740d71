"""One SQLite file for checkpoints and batteries, in whichever order they create it."""

from pathlib import Path

import apsw

from holdfast.batteries.schedule import JobTable
from holdfast.db.urls import tables_from_url
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.store_processes.store_under_test import list_run_ids, make_run


async def _open_job_store(path: Path) -> None:
    jobs = JobTable(tables_from_url(f"sqlite:{path}"))
    await jobs.open()
    await jobs.close()


async def _write_checkpoint(path: Path) -> None:
    store = SqliteStore(path)
    await store.open()
    await store.create(make_run())
    assert await list_run_ids(store) == ["run-1"]
    await store.close()


def _read_pragmas(path: Path) -> tuple[object, ...]:
    connection = apsw.Connection(str(path))
    try:
        names = ("application_id", "page_size", "auto_vacuum", "journal_mode", "user_version")
        return tuple(connection.pragma(name) for name in names)
    finally:
        connection.close()


async def test_a_file_created_by_a_battery_equals_one_created_by_the_store(tmp_path: Path) -> None:
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    await _open_job_store(one)
    await _write_checkpoint(one)
    await _write_checkpoint(other)
    await _open_job_store(other)
    assert _read_pragmas(one) == _read_pragmas(other)
