"""The folder of a file store: names, versions, leftovers, and what else may lie in it."""

import asyncio
import json
import os
import re
import shutil
import signal
import string
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import SchemaTooNew, StoreError
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import RunFilter
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.file.names import file_name
from holdfast.testing.store_suite.subject import a_run, a_write, begun, bodies_of, enlisted, listed

FIXTURES = Path(__file__).parent / "fixtures"

run_ids = st.text(string.ascii_letters + string.digits + "._:-", min_size=1, max_size=200)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[FileStore]:
    store = FileStore(folder)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def _image(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@given(st.lists(run_ids, unique=True, max_size=20))
def test_every_id_has_a_name_of_its_own_that_is_safe_everywhere(ids: list[str]) -> None:
    names = [file_name(run_id) for run_id in ids]
    assert len(set(names)) == len(ids)
    for name in names:
        assert re.fullmatch(r"[a-z0-9_][a-z0-9_~-]{0,99}", name), name
        assert name.partition(".")[0] not in {"con", "prn", "aux", "nul", "com1", "lpt1"}


def test_plain_ids_are_their_own_names() -> None:
    assert [file_name(run_id) for run_id in ("run-1", "0", "a_b")] == ["run-1", "0", "a_b"]
    assert file_name("Run-1").startswith("run-1~")
    assert file_name("..").startswith("run~")
    assert file_name("a/../b").startswith("a-b~")


async def test_a_newer_format_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    async with opened(tmp_path / "store") as store:
        await store.create(a_run())
    (tmp_path / "store" / "format.json").write_text('{"format":"holdfast file store","version":3,"more":[]}')
    shutil.rmtree(tmp_path / "store" / "children")
    before = _image(tmp_path / "store")
    with pytest.raises(SchemaTooNew) as refused:
        await FileStore(tmp_path / "store").open()
    assert (refused.value.found, refused.value.known) == (3, 2)
    assert _image(tmp_path / "store") == before
    assert not (tmp_path / "store" / "children").exists()


@pytest.mark.parametrize("text", [b"something else", b'{"format":"h\xffldfast","version":2}'], ids=["words", "spoilt"])
async def test_a_format_that_cannot_be_read_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "format.json").write_bytes(text)
    with pytest.raises(StoreError, match=r"format\.json"):
        await FileStore(tmp_path).open()
    assert [path.name for path in tmp_path.iterdir()] == ["format.json"]


async def test_a_folder_of_version_1_opens(tmp_path: Path) -> None:
    """Kept as that version wrote it, with a write cut short at the end of one journal."""
    folder = tmp_path / "store"
    shutil.copytree(FIXTURES / "file-v1", folder)
    os.utime(folder / "workers" / "worker-1.json", (0, 0))
    async with opened(folder) as store:
        assert await listed(store) == ["interrupted-run", "Queued:Run", "failed-run", "compacted-run"]
        assert await listed(store, RunFilter(interrupted=True)) == ["interrupted-run", "Queued:Run"]
        interrupted = await store.load("interrupted-run")
        assert [entry.body for entry in interrupted.entries] == [
            b'{"version":1,"prompt":"Write a poem"}',
            '{"role":"assistant","text":"Käse, ☂"}'.encode(),
            b"\x00\xffnot json",
        ]
        assert (interrupted.record.progress, interrupted.record.cancel_requested) == (b'{"iteration":1}', True)
        queued, failed = (await store.load("Queued:Run")).record, (await store.load("failed-run")).record
        assert (queued.meta, queued.parent_run_id, queued.caller_id) == (b"\xff", "interrupted-run", "bob")
        assert (failed.status, failed.reason, failed.strikes) == (Status.FAILED, "the model refused", 2)
        compacted = await store.load("compacted-run")
        assert (compacted.record.status, compacted.record.progress) == (Status.PARKED, b"plain words")
        assert [entry.seq for entry in compacted.entries] == [2]
        claim = await store.claim("interrupted-run", await enlisted(store))
        assert claim.token == 4, "the counter goes on"
        await store.append(claim, a_write(3, b"goes on"))
        await store.append(claim, a_write(4, b'{"at":0,"progress":{"iteration":2}}', progress=b'{"iteration":2}'))
        rewritten = await store.claim("compacted-run", claim.worker_id, statuses={Status.PARKED})
        await store.append(rewritten, a_write(3, b"short again", replace=True))
    async with opened(folder) as store:
        goes_on = await store.load("interrupted-run")
        assert (goes_on.entries[:3], goes_on.record.progress) == (interrupted.entries, b'{"iteration":2}')
        assert [entry.seq for entry in goes_on.entries] == [0, 1, 2, 3, 4]
        assert await bodies_of(store, "compacted-run") == [b"short again"]
        await store.remove("interrupted-run", claim=claim)
        assert await listed(store) == ["failed-run", "compacted-run"], "the child went with its parent"


async def test_a_folder_of_version_2_opens(tmp_path: Path) -> None:
    """As above; and a process was killed while it removed a family."""
    folder = tmp_path / "store"
    shutil.copytree(FIXTURES / "file-v2", folder)
    os.utime(folder / "workers" / "worker-1.json", (0, 0))
    async with opened(folder) as store:
        assert await listed(store) == ["interrupted-run", "Queued:Run", "failed-run", "compacted-run"]
        interrupted = await store.load("interrupted-run")
        assert [(entry.seq, entry.kind, entry.body) for entry in interrupted.entries] == [
            (0, "begin", b'{"version":1,"prompt":"Write a poem"}'),
            (1, "message", '{"role":"assistant","text":"Käse, ☂"}'.encode()),
            (2, "result", b"\x00\xffnot json"),
            (3, "step", b'{"at":"2026-11-16T12:00:03Z","progress":{"iteration":2}}'),
        ]
        record = interrupted.record
        assert (record.progress, record.cancel_requested, record.token) == (b'{"iteration":2}', True, 1)
        assert (await store.load("Queued:Run")).record.meta == b"\xff"
        assert (await store.load("failed-run")).record.reason == "the model refused"
        compacted = await store.load("compacted-run")
        assert ([entry.seq for entry in compacted.entries], compacted.record.progress) == ([2], b"plain words")
        claim = await store.claim("interrupted-run", await enlisted(store))
        assert claim.token == 4, "the counter goes on"
        await store.append(claim, a_write(4, b"goes on"))
        assert len(await bodies_of(store, "interrupted-run")) == 5


async def test_a_folder_of_version_1_that_was_opened_is_refused_by_version_1(tmp_path: Path) -> None:
    """It would take what is written now for damage."""
    folder = tmp_path / "store"
    shutil.copytree(FIXTURES / "file-v1", folder)
    async with opened(folder):
        assert json.loads((folder / "format.json").read_text())["version"] == 2
        assert not list((folder / "temporary").iterdir())


async def test_what_else_lies_in_the_folder_is_no_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.create(a_run())
        journal = (tmp_path / "runs" / "run-1.jsonl").read_bytes()
        for name in ("run-2.jsonl.tmp", "run-2.tmp", "notes.txt", ".run-2.jsonl.swp", "run-2.jsonl~", ".jsonl"):
            (tmp_path / "runs" / name).write_bytes(journal)
        for name in ("run-2.jsonl", "run-2.jsonl.tmp"):
            (tmp_path / "temporary" / name).write_bytes(journal)
        (tmp_path / "runs" / "folder.jsonl").mkdir()
        assert await listed(store) == ["run-1"]
        assert len(await store.claim_next(await enlisted(store), agents=["agent"], limit=9)) == 1
        await store.create(a_run("run-2"))
        assert await listed(store) == ["run-1", "run-2"]


async def test_leftover_temporary_files_go_once_nobody_can_need_them(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    old, new = tmp_path / "temporary" / "run-1.1.old.tmp", tmp_path / "temporary" / "run-1.1.new.tmp"
    old.write_bytes(b"half a jour")
    new.write_bytes(b"half a jour")
    os.utime(old, (time.time() - 3600, time.time() - 3600))
    async with opened(tmp_path):
        assert list((tmp_path / "temporary").iterdir()) == [new]


async def test_the_temporary_files_of_a_dead_process_go_at_once_and_those_of_a_live_one_stay(tmp_path: Path) -> None:
    async with opened(tmp_path):
        pass
    say_a_name = "from holdfast.checkpoint.stores.file.temporary import *; print(temporary_name('run-1'), flush=True)"
    command = [sys.executable, "-c", f"{say_a_name}; input()"]
    makers = [await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE) for _ in range(2)]
    try:
        names = [(await maker.stdout.readline()).decode().strip() for maker in makers if maker.stdout]
        dead, live = (tmp_path / "temporary" / name for name in names)
        elsewhere = tmp_path / "temporary" / "run-1.1-00000000-00000000.0123.tmp"
        for path in (dead, live, elsewhere):
            path.write_bytes(b"half a jour")
        makers[0].kill()
        assert await makers[0].wait() == -signal.SIGKILL
        async with opened(tmp_path):
            assert set((tmp_path / "temporary").iterdir()) == {live, elsewhere}
    finally:
        makers[1].kill()
        await makers[1].wait()


async def test_nothing_is_left_of_a_removed_run(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        before = {path for path in tmp_path.rglob("*") if path.is_file()}
        worker = await enlisted(store)
        claim = await begun(store, worker, a_run("Parent"))
        await store.create(a_run("Child", parent_run_id="Parent"))
        await store.request_cancel("Parent")
        await store.append(claim, a_write(1, b"all", replace=True))
        await store.remove("Parent", claim=claim)
        await store.discharge(worker)
        with pytest.raises(StoreError):
            await store.append(claim, a_write(2, b"late"))
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("spoilt", [None, b"", b"garbage" * 20])
async def test_a_lost_counter_goes_on_above_every_token_in_use(tmp_path: Path, spoilt: bytes | None) -> None:
    async with opened(tmp_path) as store:
        worker = await enlisted(store)
        for n in range(5):
            last = await begun(store, worker, a_run(f"run-{n}"))
        if spoilt is None:
            (tmp_path / "tokens").unlink()
        else:
            (tmp_path / "tokens").write_bytes(spoilt)
        assert (await store.claim("run-0", worker, steal=True)).token > last.token


async def test_a_journal_that_cannot_be_listed_is_named_once_and_harms_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as store:
        await store.create(a_run())
        (tmp_path / "runs" / "broken.jsonl").write_bytes(b"")
        for _ in range(3):
            assert await listed(store) == ["run-1"]
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "broken.jsonl" in caplog.text
        assert (tmp_path / "runs" / "broken.jsonl").exists()


async def test_a_store_opens_where_there_is_no_folder_yet(tmp_path: Path) -> None:
    async with opened(tmp_path / "some" / "where" / "new") as store:
        await store.create(a_run())
    async with opened(tmp_path / "some" / "where" / "new") as store:
        assert await listed(store) == ["run-1"]


async def test_a_relative_folder_stays_where_it_was_when_the_store_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = FileStore("store")
    monkeypatch.chdir(tmp_path / "elsewhere")
    await store.open()
    claim = await begun(store, await enlisted(store))
    await store.append(claim, a_write(1, b"one"))
    monkeypatch.chdir(tmp_path)
    await store.append(claim, a_write(2, b"two"))
    assert await bodies_of(store) == [b"begin", b"one", b"two"]
    await store.close()
    assert (tmp_path / "store" / "runs" / "run-1.jsonl").exists()
    assert not list((tmp_path / "elsewhere").iterdir())
