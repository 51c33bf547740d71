"""Who may read the files of a SQLite store."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.db.sqlite_tables import SqliteTables
from holdfast.db.tables import Schema
from holdfast.stores.from_url import store_from_url
from holdfast.stores.sqlite import SqliteStore
from holdfast.testing.store_processes.store_under_test import make_run


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def get_modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): f"{path.stat().st_mode & 0o777:o}" for path in folder.rglob("*")}


async def test_new_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    with umask(0o022):
        store = SqliteStore(tmp_path / "some" / "folder" / "runs.db")
        await store.open()
        await store.create(make_run())
        modes = get_modes(tmp_path)
        await store.close()
    assert modes == {
        **dict.fromkeys(["some", "some/folder"], "700"),
        **dict.fromkeys(["some/folder/runs.db", "some/folder/runs.db-wal", "some/folder/runs.db-shm"], "600"),
    }


async def test_the_default_folder_is_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOLDFAST_STORE", raising=False)
    with umask(0o022):
        store = store_from_url()
        await store.open()
        await store.close()
    assert get_modes(tmp_path) == {".holdfast": "700", ".holdfast/runs.db": "600"}


async def test_the_tables_of_batteries_are_for_their_owner_alone(tmp_path: Path) -> None:
    with umask(0o022):
        tables = SqliteTables(tmp_path / "folder" / "runs.db")
        await tables.open(Schema(name="test", migrations=[["CREATE TABLE test (a)"]]))
        modes = get_modes(tmp_path)
        await tables.close()
    assert modes["folder"] == "700"
    assert {modes[f"folder/runs.db{suffix}"] for suffix in ("", "-wal", "-shm")} == {"600"}


async def test_a_file_behind_a_dangling_link_is_for_its_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "runs.db")
    with umask(0o022):
        store = SqliteStore(tmp_path / "link.db")
        await store.open()
        await store.close()
    assert f"{(tmp_path / 'runs.db').stat().st_mode & 0o777:o}" == "600"


async def test_an_existing_folder_and_file_keep_their_modes(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "runs.db").touch()
    folder.chmod(0o750)
    (folder / "runs.db").chmod(0o640)
    store = SqliteStore(folder / "runs.db")
    await store.open()
    await store.create(make_run())
    modes = get_modes(tmp_path)
    await store.close()
    assert modes == {
        "folder": "750",
        **dict.fromkeys(["folder/runs.db", "folder/runs.db-wal", "folder/runs.db-shm"], "640"),
    }


async def test_the_health_check_warns_about_files_that_others_may_read(tmp_path: Path) -> None:
    folder = tmp_path / ".holdfast"
    store = SqliteStore(folder / "runs.db")
    await store.open()
    assert (await store.check_health()).warnings == []
    (folder / "runs.db").chmod(0o644)
    folder.chmod(0o755)
    warnings = (await store.check_health()).warnings
    await store.close()
    assert [warning.partition(": ")[2] for warning in warnings] == [
        f"chmod 600 {folder / 'runs.db'}",
        f"chmod 700 {folder}",
    ]
