"""What the file store reads when a journal is torn or damaged, and what a journal looks like."""

import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import RunDamaged
from holdfast.checkpoint.journal import Entry, EntryKind, Write
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import StoredRun
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.file.disk import AnyPath, Disk
from holdfast.checkpoint.stores.file.lines import entry_line, parse_entry
from holdfast.testing.store_suite.subject import a_run, a_write, begun, bodies_of, contents, enlisted, listed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest_asyncio.fixture
async def store(folder: Path) -> AsyncIterator[FileStore]:
    store = FileStore(folder, durability="process")
    await store.open()
    yield store
    await store.close()


@pytest_asyncio.fixture
async def claim(store: FileStore) -> Claim:
    run = a_run("run-1", b'{"version":1}', b"\xff", meta=b'{"prompt":"hi"}', progress=b'{"step":0}')
    return await begun(store, await enlisted(store), run)


@pytest.fixture
def journal(folder: Path) -> Path:
    return folder / "runs" / "run-1.jsonl"


@pytest.fixture
def lock(folder: Path) -> Path:
    return folder / "locks" / "run-1.lock"


#: The last entry of a write: as it comes; or a step, whose progress the line that commits it does not repeat.
LAST_BODIES = {"any": b"\0two", "step": b'{"at":"noon","progress":{"step":1}}'}
last_body = pytest.mark.parametrize("last", LAST_BODIES.values(), ids=LAST_BODIES.keys())


async def _before_and_after_an_append(
    store: FileStore, claim: Claim, journal: Path, lock: Path, last: bytes
) -> tuple[StoredRun, StoredRun, bytes, bytes]:
    """The run before and after a write of two entries, and its file; the mark is put back to before it."""
    before, before_bytes, mark = await store.load("run-1"), journal.read_bytes(), lock.read_bytes()
    await store.append(claim, a_write(2, b'{"a":"message"}', last, progress=b'{"step":1}'))
    lock.write_bytes(mark)
    return before, await store.load("run-1"), before_bytes, journal.read_bytes()


@last_body
async def test_a_write_torn_at_any_byte_is_passed_over_by_readers_and_cut_by_the_next_write(
    store: FileStore, claim: Claim, journal: Path, lock: Path, last: bytes
) -> None:
    before, after, whole, longer = await _before_and_after_an_append(store, claim, journal, lock, last)
    mark = lock.read_bytes()
    for length in range(len(whole), len(longer) + 1):
        for rest in (b"", b"\0" * 100):
            torn = longer[:length] + rest
            journal.write_bytes(torn)
            seen = after if length == len(longer) else before
            assert await store.load("run-1") == seen
            assert [record async for record in store.records()] == [seen.record]
            assert journal.read_bytes() == torn, "a reader changes nothing"
            if length % 7 == 0:
                await store.append(claim, a_write(seen.record.next_seq, b"goes on"))
                assert list((await store.load("run-1")).entries)[:-1] == list(seen.entries)
                assert all(map(json.loads, journal.read_text().splitlines())), "something torn was left behind"
                lock.write_bytes(mark)


@last_body
async def test_a_write_whose_beginning_never_reached_the_disk_is_passed_over(
    store: FileStore, claim: Claim, journal: Path, lock: Path, last: bytes
) -> None:
    before, _, whole, longer = await _before_and_after_an_append(store, claim, journal, lock, last)
    for lost in range(1, len(longer) - len(whole)):
        journal.write_bytes(whole + b"\0" * lost + longer[len(whole) + lost :])
        assert await store.load("run-1") == before
        assert [record async for record in store.records()] == [before.record]


async def test_lines_of_two_attempts_at_one_write_do_not_make_a_write(
    store: FileStore, claim: Claim, journal: Path, lock: Path
) -> None:
    """The first failed and was cut off, the second was not synced: a power cut may leave some of either."""
    before, whole, mark = await store.load("run-1"), journal.read_bytes(), lock.read_bytes()
    attempts = []
    for body in (b'"first try"', b'"secondtry"'):
        await store.append(claim, a_write(2, body))
        attempts.append(journal.read_bytes()[len(whole) :].splitlines(keepends=True))
        journal.write_bytes(whole)
        lock.write_bytes(mark)
    journal.write_bytes(whole + attempts[0][0] + attempts[1][1])
    assert await store.load("run-1") == before
    assert [record async for record in store.records()] == [before.record]


async def test_no_flipped_bit_goes_unnoticed(store: FileStore, claim: Claim, journal: Path) -> None:
    await store.append(claim, a_write(2, b'{"a":"message"}', progress=b'{"step":1}', finished_step=True))
    await store.append(claim, a_write(3, b'{"at":"noon","progress":{"step":2}}', progress=b'{"step":2}'))
    await store.append(claim, a_write(4, b"last", progress=b'{"step":2}'))
    await store.create(a_run("other"))
    good = journal.read_bytes()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        journal.write_bytes(bad)
        with pytest.raises(RunDamaged) as damaged:
            await store.load("run-1")
        assert damaged.value.run_id == "run-1"
        assert journal.read_bytes() == bad, "it is left untouched"
        assert "other" in await listed(store)
    journal.write_bytes(good)
    assert len(await bodies_of(store)) == 5


async def test_a_journal_whose_end_is_damaged_is_not_claimed_nor_written_to(
    store: FileStore, claim: Claim, journal: Path
) -> None:
    whole = len(journal.read_bytes())
    await store.append(claim, a_write(2, b"acknowledged"))
    good = journal.read_bytes()
    for bad in (good[:whole], good[:-1], good[:-9] + b"x" + good[-8:], good[:whole] + b"\0" * (len(good) - whole)):
        journal.write_bytes(bad)
        for call in (
            store.append(claim, a_write(3, b"more")),
            store.claim("run-1", claim.worker_id, steal=True),
            store.request_cancel("run-1"),
        ):
            with pytest.raises(RunDamaged, match="saved up to"):
                await call
        assert list(await store.claim_next(claim.worker_id, agents=["agent"], limit=1)) == []
        assert journal.read_bytes() == bad
    await store.remove("run-1")
    assert await listed(store) == []


@last_body
async def test_without_its_mark_a_flipped_bit_is_damage_or_a_torn_end_and_never_read(
    store: FileStore, claim: Claim, journal: Path, lock: Path, last: bytes
) -> None:
    await store.append(claim, a_write(2, b'{"a":"message"}', progress=b'{"step":1}'))
    before, end = await store.load("run-1"), len(journal.read_bytes())
    await store.append(claim, a_write(3, last, progress=b'{"step":1}'))
    good = journal.read_bytes()
    lock.unlink()
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        journal.write_bytes(bad)
        if position < end:
            with pytest.raises(RunDamaged):
                await store.load("run-1")
        else:
            assert await store.load("run-1") == before


async def test_an_entry_that_was_taken_out_is_missed(store: FileStore, claim: Claim, journal: Path, lock: Path) -> None:
    for seq in range(2, 6):
        await store.append(claim, a_write(seq, b"%d" % seq))
    lines = journal.read_bytes().splitlines(keepends=True)
    lock.unlink()
    for gone in range(len(lines) - 2):
        journal.write_bytes(b"".join(lines[:gone] + lines[gone + 1 :]))
        with pytest.raises(RunDamaged):
            await store.load("run-1")


async def test_a_journal_under_a_wrong_name_is_no_run(store: FileStore, claim: Claim, folder: Path) -> None:
    journal = folder / "runs" / "run-1.jsonl"
    journal.with_name("copy.jsonl").write_bytes(journal.read_bytes())
    assert await listed(store) == ["run-1"]
    with pytest.raises(RunDamaged, match="holds the run run-1"):
        await store.load("copy")


async def test_a_journal_is_lines_of_json_with_readable_bodies(store: FileStore, claim: Claim, journal: Path) -> None:
    await store.append(claim, a_write(2, '{"text":"Käse ☂"}'.encode(), progress=b'{"step":1}'))
    first, *lines = (json.loads(line) for line in journal.read_text().splitlines())
    assert (first["run"]["run_id"], first["meta"]) == ("run-1", {"prompt": "hi"})
    entries = [line for line in lines if not {"state", "saved"} & line.keys()]
    assert entries == [{"begin": {"version": 1}}, {"begin": {"base64": "/w=="}}, {"message": {"text": "Käse ☂"}}]
    state, saved = [line for line in lines if {"state", "saved"} & line.keys()]
    assert (state["progress"], saved["progress"]) == ({"step": 0}, {"step": 1})
    assert (state["state"]["status"], saved["next_seq"]) == (Status.RUNNING, 3)


async def test_a_write_says_again_only_what_changed(store: FileStore, claim: Claim, journal: Path) -> None:
    async def added(write: Write) -> dict[str, object]:
        before = await store.load("run-1")
        await store.append(claim, write)
        after, last = await store.load("run-1"), json.loads(journal.read_bytes().splitlines()[-1])
        assert (after.record.progress, after.record.next_seq) == (write.progress, before.record.next_seq + 1)
        assert (after.record.owner, after.record.token) == (before.record.owner, before.record.token)
        assert isinstance(last, dict)
        return last

    first = await added(a_write(2, b"one", progress=b'{"step":1}', finished_step=True))
    assert "state" in first, "the strikes are gone"
    step = await added(a_write(3, b'{"at":0,"progress":{"step":2}}', progress=b'{"step":2}', finished_step=True))
    assert step.keys() == {"saved", "next_seq", "size", "at", "sum", "since", "crc"}
    other = await added(a_write(4, b'{"at":0,"progress":{"step":3}}', progress=b'{"step":4}', finished_step=True))
    assert other["progress"] == {"step": 4}
    await store.request_cancel("run-1")
    assert (await store.load("run-1")).record.cancel_requested
    again = await added(a_write(5, b'{"at":0,"progress":{"step":5}}', progress=b'{"step":5}', finished_step=True))
    assert again["since"] != step["since"]
    assert (await store.load("run-1")).record.cancel_requested


@given(
    st.binary()
    | st.text().map(str.encode)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda value: json.dumps(value).encode()),
    st.integers(0),
)
def test_any_bytes_come_back_as_they_were(body: bytes, seq: int) -> None:
    entry = Entry(seq=seq, kind=EntryKind.RESULT, body=body)
    line = entry_line(entry)
    assert parse_entry(line) == (None, entry.kind, body)
    assert line.index(b"\n") == len(line) - 1
    shown = json.loads(line)["result"]
    if isinstance(shown, dict) and "base64" in shown:
        assert base64.b64decode(shown["base64"]) == body
    else:
        assert shown == json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"base64":"aGk="}',
        b'1,"crc":"00000000"',
        b'1,"body":2',
        b'{"a":1} ',
        b'{"a":\n1}',
        b"[" * 5000 + b"]" * 5000,
        b'"\xc3"',
        b"NaN",
    ],
)
def test_bodies_that_look_like_something_else_come_back_as_they_were(body: bytes) -> None:
    entry = Entry(seq=7, kind=EntryKind.MESSAGE, body=body)
    line = entry_line(entry)
    assert parse_entry(line) == (None, entry.kind, body)
    json.loads(line)


class CountingDisk(Disk):
    """Knows what a save cost."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = self.syncs = self.written = 0

    def open(self, path: AnyPath) -> int:
        self.opened += 1
        return super().open(path)

    def open_or_create(self, path: AnyPath) -> int:
        self.opened += 1
        return super().open_or_create(path)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        self.written += len(data)
        super().write(fd, data, offset)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)

    def sync_folder(self, path: AnyPath) -> None:
        self.syncs += 1
        super().sync_folder(path)


counts_reads = pytest.mark.skipif(not os.access("/proc/self/io", os.R_OK), reason="the system does not count reads")


def _read_by_this_process() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@counts_reads
async def test_a_save_costs_one_sync_and_the_same_bytes_however_long_the_journal(folder: Path) -> None:
    disk = CountingDisk()
    store = FileStore(folder, disk=disk)
    await store.open()
    claim = await begun(store, await enlisted(store), a_run())
    costs = []
    for seq in range(1, 1000):
        disk.opened, disk.syncs, disk.written, read = 0, 0, 0, _read_by_this_process()
        await store.append(claim, a_write(seq, b'"%s"' % (b"x" * 2000), progress=b"{}"))
        costs.append((disk.syncs, disk.written, _read_by_this_process() - read))
        assert disk.opened == (2 if seq == 1 else 0), "lock and journal stay open"
    await store.close()
    assert {syncs for syncs, _, _ in costs} == {1}
    assert max(written for _, written, _ in costs[-10:]) <= max(written for _, written, _ in costs[:10]) + 20
    assert max(read for _, _, read in costs[-10:]) <= max(read for _, _, read in costs[:10]) + 2000
    assert os.stat(folder / "runs" / "run-1.jsonl").st_size < 1.25 * 999 * 2000


async def test_a_run_occupies_little_more_than_its_transcript(folder: Path) -> None:
    """Steps as the loop saves them: a reply, a tool result, and the entry that ends the step."""
    reply = b'{"role":"reply","text":"%s","tool_calls":[{"id":"4321","name":"look","arguments":{"number":4321}}]}'
    result = b'{"role":"tool","call_id":"4321","tool":"look","content":"%s"}'
    store = FileStore(folder, durability="process")
    await store.open()
    claim = await begun(store, await enlisted(store), a_run())
    for n in range(1000, 2000):
        usage = b'{"requests":%d,"input_tokens":%d,"output_tokens":%d,"tool_calls":%d}' % (n, n * 1000, n * 100, n)
        progress = b'{"iteration":%d,"own_usage":%s,"elapsed":"PT%d.077715S"}' % (n, usage, n)
        step = b'{"at":"2026-11-16T03:18:45.208232Z","progress":%s}' % progress
        bodies = [reply % (b"x" * 1000), result % (b"y" * 1000), step]
        await store.append(claim, a_write(3 * n - 2999, *bodies, progress=progress, finished_step=True))
    await store.close()
    assert os.stat(folder / "runs" / "run-1.jsonl").st_size < 1.3 * 1000 * 2000


@counts_reads
async def test_a_listing_reads_no_transcripts(store: FileStore, claim: Claim) -> None:
    await listed(store)
    read = _read_by_this_process()
    await listed(store)
    short = _read_by_this_process() - read
    await store.append(claim, a_write(2, b"x" * 3_000_000))
    read = _read_by_this_process()
    await listed(store)
    assert _read_by_this_process() - read < short + 10_000


async def test_old_state_lines_are_cleared_away(store: FileStore, claim: Claim, journal: Path) -> None:
    progress = b'{"much":"%s"}' % (b"x" * 5000)
    lengths = []
    for n in range(300):
        await store.append(claim, a_write(2, progress=progress + b" " * (n % 2)))
        lengths.append(journal.stat().st_size)
    assert max(lengths) < 300_000
    assert len(await bodies_of(store)) == 2
    await store.append(claim, a_write(2, b"goes on", progress=b"small"))
    record, entries = await contents(store)
    assert (record.token, record.progress, record.next_seq) == (claim.token, b"small", 3)
    assert [entry.body for entry in entries] == [b'{"version":1}', b"\xff", b"goes on"]
