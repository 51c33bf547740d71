"""Retries of writes, uses of claims, and the journals that a process keeps between turns."""

import asyncio
from datetime import timedelta

import pytest
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.checkpoint.claims import Claims, cancel_run, retry_while_unavailable
from holdfast.checkpoint.codec import RecentConversations, encode, encode_begin
from holdfast.checkpoint.errors import StoreClosed, StoreError, StoreUnavailable
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import NewRun, Release, RunStatus, StoredRun
from holdfast.config import CheckpointSettings
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import NATIVE_CODEC
from holdfast.core.run.state import RunState
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock

MIB = 2**20


class PassingClock(ManualClock):
    """A clock whose sleeps take no real time, and are recorded in milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps: list[int] = []

    async def sleep(self, duration: timedelta) -> None:
        self.sleeps.append(round(duration / timedelta(milliseconds=1)))
        await self.advance(duration)


class Unavailable:
    """A write that a store refuses a number of times."""

    def __init__(self, times: int, error: type[StoreError] = StoreUnavailable) -> None:
        self.left, self.error, self.calls = times, error, 0

    async def __call__(self) -> None:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error("not now")


async def test_the_pauses_between_retries_double_up_to_two_seconds() -> None:
    clock, write = PassingClock(), Unavailable(8)
    await retry_while_unavailable(write, timedelta(minutes=1), clock)
    assert write.calls == 9
    assert clock.sleeps == [50, 100, 200, 400, 800, 1600, 2000, 2000]


async def test_retries_end_with_the_timeout() -> None:
    for milliseconds, sleeps in ((0, []), (49, []), (50, [50]), (160, [50, 100]), (349, [50, 100])):
        clock, write = PassingClock(), Unavailable(100)
        with pytest.raises(StoreUnavailable):
            await retry_while_unavailable(write, timedelta(milliseconds=milliseconds), clock)
        assert (clock.sleeps, write.calls) == (sleeps, len(sleeps) + 1)


async def test_another_error_is_not_retried() -> None:
    write = Unavailable(1, StoreError)
    with pytest.raises(StoreError):
        await retry_while_unavailable(write, timedelta(minutes=1), PassingClock())
    assert write.calls == 1


async def test_a_use_ends_once_and_none_begins_after_the_last_one() -> None:
    claims = Claims(MemoryStore(), CheckpointSettings(), ManualClock())
    first, second = claims.use(), claims.use()
    finishing = asyncio.create_task(claims.finish())
    await asyncio.sleep(0)
    first.end()
    first.end()
    with claims.use():  # as long as the second one lasts
        await asyncio.sleep(0)
        assert not finishing.done()
    second.end()
    await finishing
    with pytest.raises(StoreClosed, match="takes no more runs"):
        claims.use()


async def keep(recent: RecentConversations, store: MemoryStore, run_id: str, size: int = 1) -> None:
    """Keep a conversation that is said to have this many bytes."""
    stored = await store.load(run_id)
    info = RunInfo(run_id=run_id, agent_name="a")
    recent.put(info, RunState(), stored.record.created_at, stored.record.next_seq, size)


async def list_kept(recent: RecentConversations, store: MemoryStore, *run_ids: str) -> list[str]:
    """Return the runs that are loaded without their entries."""
    return [run_id for run_id in run_ids if not (await recent.load(store, run_id)).entries]


async def make_store(*run_ids: str, progress: bytes = b"{}") -> MemoryStore:
    store = MemoryStore()
    await store.open()
    for run_id in run_ids:
        info = RunInfo(run_id=run_id, agent_name="a")
        await store.create(NewRun.create(info, progress, [Entry(seq=0, kind=EntryKind.BEGIN, body=encode_begin(info))]))
    return store


async def test_the_newest_128_conversations_are_kept() -> None:
    run_ids = [f"r{number}" for number in range(129)]
    store, recent = await make_store(*run_ids), RecentConversations()
    for run_id in run_ids[:128]:
        await keep(recent, store, run_id)
    assert await list_kept(recent, store, *run_ids) == run_ids[:128]
    await keep(recent, store, "r0")  # it is the newest now, and counts once
    await keep(recent, store, "r128")
    assert await list_kept(recent, store, *run_ids) == ["r0", *run_ids[2:]]


async def test_the_kept_conversations_have_32_mib_in_all() -> None:
    store, recent = await make_store("a", "b", "c"), RecentConversations()
    await keep(recent, store, "a", 16 * MIB)
    await keep(recent, store, "a", 16 * MIB)
    await keep(recent, store, "b", 16 * MIB)
    assert await list_kept(recent, store, "a", "b", "c") == ["a", "b"]
    await keep(recent, store, "c", 1)
    assert await list_kept(recent, store, "a", "b", "c") == ["b", "c"]
    await keep(recent, store, "c", 32 * MIB + 1)
    assert await list_kept(recent, store, "a", "b", "c") == []


async def test_a_conversation_that_was_changed_is_loaded_as_a_whole() -> None:
    store, recent = await make_store("a", "b"), RecentConversations()
    for run_id in ("a", "b"):
        await keep(recent, store, run_id)
    kept = await recent.load(store, "a")
    assert recent.read(kept, NATIVE_CODEC) is not None
    claim = await store.claim("a", "w")
    await store.append(claim, Append(entries=[Entry(seq=1, kind=EntryKind.EVENT, body=b"{}")], progress=b"{}"))
    stored = await recent.load(store, "a")
    assert [entry.seq for entry in stored.entries] == [0, 1]
    assert recent.read(stored, NATIVE_CODEC) is None
    assert recent.read(kept, NATIVE_CODEC) is None, "the journal is not kept any longer"
    assert await list_kept(recent, store, "b") == ["b"]


@pytest.mark.parametrize(("left", "is_requested", "status"), [
    (RunStatus.PARKED, False, RunStatus.INTERRUPTED), (RunStatus.PARKED, True, RunStatus.CANCELLED),
    (RunStatus.INTERRUPTED, False, RunStatus.INTERRUPTED), (RunStatus.INTERRUPTED, True, RunStatus.INTERRUPTED),
])  # fmt: skip
async def test_a_run_with_steps_to_undo_is_cancelled_by_a_worker_unless_that_was_tried(
    left: RunStatus, is_requested: bool, status: RunStatus
) -> None:
    store = await make_store("r", progress=encode(Progress(undo_on_cancel=True)))
    await store.release(await store.claim("r", "w"), Release(status=left))
    if is_requested:
        await store.request_cancel("r")
    await cancel_run(Claims(store, CheckpointSettings(), ManualClock()), "r")
    record = (await store.load("r")).record
    assert (record.status, record.cancel_requested) == (status, status is RunStatus.INTERRUPTED)


class ReadStore(MemoryStore):
    """A store that remembers after which entry each load began."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[int] = []

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        self.loads.append(after)
        return await super().load(run_id, after=after)


async def test_a_turn_does_not_read_the_turns_before_it() -> None:
    store = ReadStore()
    async with App([Agent(name="talker", model=ScriptedModel("one", "two"))], store) as app:
        conversation = app.conversation("talker", "key")
        await conversation.result(await conversation.post("first"))
        next_seq = (await MemoryStore.load(store, conversation.run_id)).record.next_seq
        store.loads.clear()
        turn = await conversation.result(await conversation.post("second"))
    assert turn.output == "two"
    assert -1 not in store.loads
    assert next_seq - 1 in store.loads
