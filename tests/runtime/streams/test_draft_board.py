"""The board of drafts: what it writes for watchers in other processes, when, and how often."""

import asyncio
from datetime import timedelta

import msgspec
from tests.probe_store import ProbeStore

from holdfast.checkpoint.checkpointer import StoreCheckpointer
from holdfast.checkpoint.codec import Draft, decode
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import get_record
from holdfast.core.ports import NullCheckpointer
from holdfast.core.run.info import RunInfo
from holdfast.core.run.state import RunState
from holdfast.runtime.streams.draft_board import (
    DraftBoard,
    DraftReader,
    LocalDraft,
)
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

#: How often drafts are written, how often requests for them are looked up, and how long one is valid.
PUBLISH_INTERVAL, REQUEST_CHECK_INTERVAL = timedelta(milliseconds=100), timedelta(seconds=1)
TTL = timedelta(seconds=30)
MAX_LENGTH = 2**18


class Process:
    """A process that executes runs, and its board. Without `shows`, watchers in it read the store too."""

    def __init__(self, *, shows: bool = True) -> None:
        self.clock = ManualClock()
        self.store = ProbeStore(MemoryStore(clock=self.clock))
        self.checkpoints = StoreCheckpoints(self.store, clock=self.clock)
        self.shown: list[tuple[str, str]] = []
        self.board = DraftBoard(self.store, self.clock, self._show if shows else None)

    def _show(self, draft: LocalDraft) -> None:
        now = draft.snapshot()
        self.shown.append((now.text, now.reasoning))

    async def begin(self, run_id: str = "r") -> LocalDraft:
        """Begin the draft of a run that is in the store."""
        checkpointer = await self.checkpoints.begin(RunInfo(run_id=run_id, agent_name="a"))
        await checkpointer.save(RunState(), force=True)
        draft = self.board.open(run_id, checkpointer)
        assert draft is not None
        return draft

    async def read(self, run_id: str = "r") -> Draft | None:
        body = await self.store.inner.read_draft(run_id)
        return None if body is None else decode(body, Draft)

    async def request(self, run_id: str = "r") -> None:
        """Ask for drafts as a watcher of another process does."""
        await self.store.inner.read_draft(run_id, keep_for=TTL)

    def make_reader(self, worker_id: str = "another") -> DraftReader:
        return DraftReader(self.store, self.board, worker_id, self.clock)


async def test_a_draft_is_shown_at_each_change_until_it_is_closed() -> None:
    process = Process()
    draft = await process.begin()
    assert process.board.shows_at_once
    draft.add(text="Hel")
    draft.add(reasoning="hm")
    draft.add(text="lo")
    assert process.shown == [("Hel", ""), ("Hel", "hm"), ("Hello", "hm")]
    assert process.board.get("r") == draft.snapshot()
    first = draft.snapshot().number
    draft.restart()
    assert process.shown[3:] == [("", "")]
    assert draft.snapshot().number == first + 1, "a model call that is repeated has another number"
    draft.restart()
    assert len(process.shown) == 4, "there was nothing to withdraw"
    draft.add(reasoning="hm")
    draft.restart()
    assert process.shown[4:] == [("", "hm"), ("", "")]
    draft.close()
    assert process.board.get("r") is None
    draft.add(text="late")
    draft.restart()
    draft.close()
    assert len(process.shown) == 6
    assert process.board.get("another") is None
    await process.board.close()


async def test_the_draft_of_an_earlier_reply_neither_shows_nor_closes_the_next() -> None:
    process = Process()
    earlier, later = await process.begin(), await process.begin("r2")
    board = process.board
    checkpointer = await process.checkpoints.begin(RunInfo(run_id="r", agent_name="a"))
    assert board.open("r", checkpointer) is None, "it is not in the store"
    assert board.open("r", NullCheckpointer()) is None
    assert isinstance(checkpointer, StoreCheckpointer)
    checkpointer.claim = earlier.claim
    following = board.open("r", checkpointer)
    assert following is not None
    assert following.snapshot().number == later.snapshot().number + 1
    earlier.add(text="old")
    earlier.close()
    assert process.shown == []
    assert board.get("r") == following.snapshot()
    await board.close()


async def test_drafts_are_written_once_another_process_asks_and_removed_once_they_end() -> None:
    process = Process()
    clock, store = process.clock, process.store
    draft, other = await process.begin(), await process.begin("other")
    draft.add(text="Hel")
    other.add(text="none asks")
    await clock.advance(timedelta(seconds=5))
    assert "put_draft" not in store.calls
    await process.request()
    await clock.advance(REQUEST_CHECK_INTERVAL)
    assert await process.read() == draft.snapshot(), "what was there before the watcher"
    assert await process.read("other") is None
    draft.add(text="l")
    draft.add(text="o")
    assert store.calls.count("put_draft") == 1
    await clock.advance(PUBLISH_INTERVAL)
    assert store.calls.count("put_draft") == 2
    assert await process.read() == draft.snapshot()
    await clock.advance(timedelta(seconds=5))
    assert store.calls.count("put_draft") == 2, "it has not changed"
    draft.close()
    await clock.advance(PUBLISH_INTERVAL)
    assert await process.read() is None
    assert store.calls.count("put_draft") == 3
    other.close()
    await clock.advance(PUBLISH_INTERVAL)
    store.calls.clear()
    await clock.advance(timedelta(seconds=5))
    assert store.calls == [], "no run has a draft"
    assert clock.waiting == 0
    again = await process.begin("later")
    await process.request("later")
    again.add(text="x")
    await clock.advance(timedelta(seconds=2))
    assert await process.read("later") == again.snapshot()
    await process.board.close()
    assert clock.waiting == 0


async def test_requests_are_looked_up_once_a_second() -> None:
    process = Process()
    draft = await process.begin()
    draft.add(text="a")
    for _ in range(30):
        draft.add(text="b")
        await process.clock.advance(PUBLISH_INTERVAL)
    assert process.store.calls.count("pending") == 3
    await process.board.close()


async def test_a_write_that_fails_is_repeated_a_second_later() -> None:
    process = Process()
    draft = await process.begin()
    await process.request()
    process.store.fail("pending", StoreUnavailable("away"))
    draft.add(text="Hel")
    await process.clock.advance(PUBLISH_INTERVAL)
    await process.clock.advance(REQUEST_CHECK_INTERVAL * 0.9)
    assert await process.read() is None
    await process.clock.advance(REQUEST_CHECK_INTERVAL)
    assert await process.read() == draft.snapshot()
    await process.board.close()


async def test_long_drafts_are_written_in_part_and_halves_of_a_character_are_replaced() -> None:
    process = Process()
    draft = await process.begin()
    await process.request()
    draft.add(text="x" * (MAX_LENGTH + 1), reasoning="y" * (MAX_LENGTH + 1))
    await process.clock.advance(PUBLISH_INTERVAL)
    written = await process.read()
    assert written is not None
    assert (len(written.text), len(written.reasoning)) == (MAX_LENGTH, MAX_LENGTH)
    assert len(draft.snapshot().text) == MAX_LENGTH + 1
    other = await process.begin("r2")
    other.add(text="é\ud83d")
    assert other.snapshot().text == "é?"
    await process.board.close()


async def make_running(process: Process) -> RunRecord:
    await process.begin()
    return await get_record(process.store, "r")


async def test_a_reader_takes_the_draft_of_its_own_process_from_the_board() -> None:
    process = Process()
    record = await make_running(process)
    own, foreign = process.make_reader(process.checkpoints.worker_id), process.make_reader()
    assert (own.is_local(record), foreign.is_local(record)) == (True, False)
    stopped = msgspec.structs.replace(record, status=RunStatus.INTERRUPTED)
    assert not own.is_local(stopped)
    assert await own.read(record) == process.board.get("r")
    assert "read_draft" not in process.store.calls
    assert await foreign.read(record) is None
    assert process.store.calls.count("read_draft") == 1
    for ended in (stopped, msgspec.structs.replace(record, owner_alive=False)):
        assert await own.read(ended) is None
        assert await foreign.read(ended) is None
    assert process.store.calls.count("read_draft") == 1
    redacting = Process(shows=False)
    assert not redacting.board.shows_at_once
    assert await redacting.make_reader(redacting.checkpoints.worker_id).read(await make_running(redacting)) is None
    assert redacting.store.calls.count("read_draft") == 1


async def test_a_reader_renews_its_request_every_ten_seconds() -> None:
    process = Process()
    record, reader, worker_id = await make_running(process), process.make_reader(), process.checkpoints.worker_id

    async def is_requested() -> bool:
        return "r" in (await process.store.pending(worker_id)).drafts

    assert not await is_requested()
    await reader.read(record)
    await process.clock.advance(timedelta(seconds=10))
    await reader.read(record)
    await process.clock.advance(TTL - timedelta(seconds=0.5))
    assert await is_requested()
    await process.clock.advance(timedelta(seconds=1))
    assert not await is_requested(), "its watcher is gone"
    await reader.read(record)
    await process.clock.advance(timedelta(seconds=9))
    await reader.read(record)
    await process.clock.advance(timedelta(seconds=22))
    assert not await is_requested(), "the second read came too soon to renew it"


async def test_a_draft_is_read_from_the_store_unless_a_newer_version_has_written_it() -> None:
    process = Process()
    draft = await process.begin()
    await process.store.put_draft(draft.claim, msgspec.json.encode(draft.snapshot()))
    assert await process.make_reader().read(await get_record(process.store, "r")) == draft.snapshot()
    await process.store.put_draft(draft.claim, b'{"token": "new"}')
    assert await process.make_reader().read(await get_record(process.store, "r")) is None


async def test_a_board_that_closes_stops_writing() -> None:
    process = Process()
    draft = await process.begin()
    await process.board.close()
    draft.add(text="a")
    await asyncio.sleep(0)
    assert process.clock.waiting == 1
    await process.board.close()
    assert process.clock.waiting == 0
