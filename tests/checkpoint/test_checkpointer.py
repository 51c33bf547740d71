"""The handle of one run on a store: how runs end, and what a handle may still write."""

import asyncio
from datetime import timedelta

import pytest
from tests.checkpoint.harness import SECOND, CheckpointerHarness
from tests.probe_store import ProbeStore

from holdfast.checkpoint.codec import Outcome, decode
from holdfast.checkpoint.errors import ClaimLost, RunExists, StoreFull, StoreUnavailable, TranscriptTooLarge
from holdfast.checkpoint.journal import Append, EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.workers import Claim
from holdfast.config import Retention
from holdfast.core.errors import PayloadError, RunCancelled, RunParked
from holdfast.core.ports import Leave, NullCheckpointer
from holdfast.core.run.messages import NO_USAGE, Usage, User
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd

# -- 1: an end is final -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_a_run_that_was_saved_and_then_ended_leaves_nothing_to_recover(
    harness: CheckpointerHarness, end: str
) -> None:
    handle = harness.make_checkpointer()
    harness.add_message("one")
    await handle.save(harness.state)
    if end == "complete":
        await handle.complete("out", NO_USAGE)
    else:
        await handle.fail(RunCancelled() if end == "cancel" else ValueError("broken"))
    await harness.inner.deregister_worker("w")
    assert await harness.list_interrupted() == []
    assert await harness.list_statuses() == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), RunStatus.FAILED),
        (RunCancelled(), RunStatus.CANCELLED),
        (asyncio.CancelledError(), RunStatus.CANCELLED),
    ],
)
async def test_a_failed_run_that_is_kept_is_no_candidate_either(
    harness: CheckpointerHarness, error: BaseException, status: RunStatus
) -> None:
    handle = harness.make_checkpointer(retention=Retention(failed=timedelta(days=1), cancelled=timedelta(days=1)))
    await handle.save(harness.state)
    await handle.fail(error)
    await harness.inner.deregister_worker("w")
    assert await harness.list_statuses() == {"r": status}
    assert await harness.list_interrupted() == []
    await harness.clock.advance(timedelta(days=2))
    assert await harness.inner.purge() == 1


async def test_the_end_of_a_run_that_a_caller_waits_for_is_kept_with_its_usage(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(retention=Retention())
    await handle.save(harness.state)
    harness.add_message("unsaved")
    await handle.complete({"answer": 42}, Usage(requests=7))
    assert await harness.list_statuses() == {"r": RunStatus.DONE}
    stored = await harness.inner.load("r")
    assert decode(stored.entries[-1].body, Outcome) == Outcome(output={"answer": 42}, usage=Usage(requests=7))
    assert await harness.load_texts() == ["unsaved"]


async def test_a_run_that_never_reached_the_store_ends_without_touching_it(harness: CheckpointerHarness) -> None:
    for end in ("complete", "fail", "park", "release"):
        handle = harness.make_checkpointer()
        await {
            "complete": lambda handle=handle: handle.complete(None, NO_USAGE),
            "fail": lambda handle=handle: handle.fail(ValueError()),
            "park": lambda handle=handle: handle.leave(Leave(AttemptEnd.PARKED, reason="why")),
            "release": lambda handle=handle: handle.leave(Leave()),
        }[end]()
    assert harness.store.calls == []


async def test_a_parked_run_keeps_its_reason_and_is_no_candidate(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    harness.add_message("one")
    await handle.save(harness.state)
    harness.add_message("two")
    await handle.leave(Leave(AttemptEnd.PARKED, reason="approval: pay 5 EUR"))
    record = await harness.load_record()
    assert (record.status, record.reason, record.is_interrupted) == (RunStatus.PARKED, "approval: pay 5 EUR", False)
    assert await harness.load_texts() == ["one", "two"]


async def test_a_released_run_is_a_candidate_without_a_strike(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    harness.add_message("one")
    await handle.save(harness.state)
    await handle.leave(Leave())
    record = await harness.load_record()
    assert (record.status, record.is_interrupted, record.strikes) == (RunStatus.INTERRUPTED, True, 0)


# -- 4: no store ------------------------------------------------------------------------------------------------------


async def test_without_a_store_every_method_succeeds_and_does_nothing() -> None:
    handle = NullCheckpointer()
    state = RunState()
    state.history.append(object())  # could not be stored
    await handle.save(state)
    await handle.save(state, force=True)
    await handle.verify()
    await handle.leave(Leave(AttemptEnd.PARKED, reason="why"))
    await handle.leave(Leave())
    await handle.leave(Leave(reason="why", delay=SECOND))
    await handle.fail(ValueError())
    await handle.complete(object(), NO_USAGE)
    await handle.save(state)


# -- 8: after the end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["complete", "fail", "park", "release"])
@pytest.mark.parametrize("late", ["late", "deferred", "waiting for the lock", "concurrent"])
async def test_no_save_brings_a_run_back_that_was_settled(harness: CheckpointerHarness, end: str, late: str) -> None:
    handle = harness.make_checkpointer(save_interval=10 * SECOND)

    async def settle() -> None:
        if end == "complete":
            await handle.complete("out", NO_USAGE)
        elif end == "fail":
            await handle.fail(ValueError())
        elif end == "park":
            await handle.leave(Leave(AttemptEnd.PARKED, reason="why"))
        else:
            await handle.leave(Leave())

    await handle.save(harness.state)
    saves: list[asyncio.Task[None]] = []
    if late == "deferred":
        harness.add_message("held back")
        await handle.save(harness.state)
        await settle()
    elif late == "late":
        await settle()
        harness.add_message("late")
        await handle.save(harness.state)
        await handle.save(harness.state, force=True)
        await handle.verify()
    else:
        harness.store.loop_turns = 3
        harness.add_message("before")
        saves = [asyncio.create_task(handle.save(harness.state, force=True)) for _ in range(3)]
        await asyncio.sleep(0)
        if late == "concurrent":
            saves.append(asyncio.create_task(settle()))
        await settle()
    await asyncio.gather(*saves)
    settled = harness.store.calls[-1]
    expected = {"complete": {}, "fail": {}, "park": {"r": RunStatus.PARKED}, "release": {"r": RunStatus.INTERRUPTED}}[
        end
    ]
    assert await harness.list_statuses() == expected
    harness.add_message("much later")
    await handle.save(harness.state, force=True)
    await harness.clock.advance(60 * SECOND)
    assert settled in ("remove", "release")
    assert harness.store.calls[-1] == settled
    assert await harness.list_statuses() == expected


async def test_the_first_way_to_end_decides(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(retention=Retention())
    await handle.save(harness.state)
    await handle.leave(Leave(AttemptEnd.PARKED, reason="first"))
    await handle.complete("second", NO_USAGE)
    assert await harness.list_statuses() == {"r": RunStatus.PARKED}


# -- 9: concurrent saves ----------------------------------------------------------------------------------------------


async def test_concurrent_saves_write_no_entry_twice_and_none_out_of_order(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    harness.store.loop_turns = 2

    async def one_of_many(number: int) -> None:
        for turn in range(10):
            harness.add_message(f"{number}.{turn}")
            await handle.save(harness.state, force=bool(turn % 2))

    await asyncio.gather(*(one_of_many(number) for number in range(10)))
    entries = (await harness.inner.load("r")).entries
    assert [entry.seq for entry in entries] == list(range(101))
    assert await harness.load_texts() == [message.text for message in harness.state.history]


async def test_concurrent_saves_stay_in_order_when_writes_fail(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    harness.store.loop_turns = 2
    calls = 0

    async def every_third_fails(method: str) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise StoreFull("full")

    harness.store.before = every_third_fails

    refused = 0

    async def one_of_many(number: int) -> None:
        nonlocal refused
        for turn in range(10):
            harness.add_message(f"{number}.{turn}")
            try:
                await handle.save(harness.state)
            except StoreFull:
                refused += 1

    await asyncio.gather(*(one_of_many(number) for number in range(5)))
    assert refused > 0
    harness.store.before = None
    harness.add_message("last")
    await handle.save(harness.state)
    assert await harness.load_texts() == [message.text for message in harness.state.history]


# -- the claim --------------------------------------------------------------------------------------------------------


async def test_an_event_that_is_recorded_during_a_write_is_written_once_by_the_next_save(
    harness: CheckpointerHarness,
) -> None:
    checkpointer = harness.make_checkpointer()
    await checkpointer.save(harness.state)
    harness.state.recorded_events.append((0, b'"before"'))

    async def record(method: str) -> None:
        if method == "append" and len(harness.state.recorded_events) == 1:
            harness.state.recorded_events.append((0, b'"meanwhile"'))

    harness.store.before = record
    await checkpointer.save(harness.state)
    harness.store.before = None
    await checkpointer.save(harness.state)
    await checkpointer.save(harness.state)
    entries = [entry for write in harness.store.writes for entry in write]
    assert [entry.body for entry in entries if entry.kind is EntryKind.EVENT] == [b'"before"', b'"meanwhile"']


@pytest.mark.parametrize("error", [StoreFull("full"), asyncio.CancelledError()], ids=repr)
async def test_an_end_that_could_not_be_written_is_written_by_a_later_retry(
    harness: CheckpointerHarness, error: BaseException
) -> None:
    checkpointer = harness.make_checkpointer(retention=Retention())
    await checkpointer.save(harness.state)
    harness.store.fail("release", error)
    with pytest.raises(type(error)):
        await checkpointer.complete("done", NO_USAGE)
    assert await harness.list_statuses() == {"r": RunStatus.RUNNING}
    await checkpointer._claims.retry_pending_releases()
    assert await harness.list_statuses() == {"r": RunStatus.DONE}


async def test_a_handle_that_lost_its_claim_writes_nothing_more(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    await handle.save(harness.state)
    await harness.inner.claim("r", "other", steal=True)
    harness.add_message("stale")
    for _ in range(2):
        with pytest.raises(ClaimLost):
            await handle.save(harness.state)
    with pytest.raises(ClaimLost):
        await handle.complete("stale", NO_USAGE)
    assert await harness.load_texts() == []
    assert await harness.list_statuses() == {"r": RunStatus.RUNNING}


async def test_a_claim_is_proven_by_a_write_unless_one_was_just_made(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    await handle.save(harness.state)
    await handle.verify()
    assert len(harness.store.writes) == 1
    await harness.clock.advance(2 * SECOND)
    await handle.verify()
    assert len(harness.store.writes) == 2
    await harness.inner.claim("r", "other", steal=True)
    await handle.verify()  # within the second that a proof lasts
    await harness.clock.advance(2 * SECOND)
    with pytest.raises(ClaimLost):
        await handle.verify()


class LateStore(ProbeStore):
    """Accepts writes at once; the answers to some come a minute later, when another worker may own the run."""

    def __init__(self, harness: CheckpointerHarness, *, late: int, stolen: bool) -> None:
        super().__init__(harness.inner)
        self._clock, self._late, self._stolen = harness.clock, late, stolen

    async def append(self, claim: Claim, write: Append) -> None:
        await super().append(claim, write)
        if self._late > 0:
            self._late -= 1
            if self._stolen:
                await self.inner.claim("r", "other", steal=True)
            await self._clock.advance(60 * SECOND)


@pytest.mark.parametrize("after_a_save", [True, False])
async def test_a_proof_whose_answer_comes_late_is_none(harness: CheckpointerHarness, after_a_save: bool) -> None:
    harness.store = LateStore(harness, late=1, stolen=True)
    handle = harness.make_checkpointer()
    await handle.save(harness.state)
    if after_a_save:
        harness.add_message("hello")
        await handle.save(harness.state)
    else:
        await harness.clock.advance(2 * SECOND)
    with pytest.raises(ClaimLost):
        await handle.verify()


async def test_a_store_that_is_always_slow_is_finally_believed(harness: CheckpointerHarness) -> None:
    harness.store = LateStore(harness, late=10, stolen=False)
    handle = harness.make_checkpointer()
    await handle.save(harness.state)
    await harness.clock.advance(2 * SECOND)
    await handle.verify()
    assert len(harness.store.writes) == 3


async def test_a_save_that_had_to_be_repeated_proves_the_claim_as_of_its_last_attempt(
    harness: CheckpointerHarness,
) -> None:
    handle = harness.make_checkpointer()
    await handle.save(harness.state)
    harness.add_message("hello")
    harness.store.fail("append", *[StoreUnavailable("no answer")] * 6)
    save = asyncio.create_task(handle.save(harness.state, force=True))
    while not save.done():
        await harness.clock.advance(timedelta(milliseconds=50))
    await handle.verify()
    assert len(harness.store.writes) == 2


async def test_proving_the_claim_is_no_progress(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer()
    await handle.save(harness.state)
    await harness.clock.advance(2 * SECOND)
    await handle.verify()
    record = await harness.load_record()
    assert record.strikes == 1


async def test_a_run_id_that_is_taken_is_refused_and_the_other_run_is_untouched(harness: CheckpointerHarness) -> None:
    harness.add_message("first")
    await harness.make_checkpointer().save(harness.state)
    second = harness.make_checkpointer()
    other = RunState()
    other.history.append(User("second"))
    with pytest.raises(RunExists, match="choose another id"):
        await second.save(other)
    await second.fail(ValueError())
    assert await harness.load_texts() == ["first"]
    assert await harness.list_statuses() == {"r": RunStatus.RUNNING}


# -- what cannot be saved ---------------------------------------------------------------------------------------------


async def test_a_message_that_cannot_be_encoded_is_refused_and_what_was_saved_stays(
    harness: CheckpointerHarness,
) -> None:
    handle = harness.make_checkpointer(retention=Retention())
    harness.add_message("good")
    await handle.save(harness.state)
    harness.add_message("half a pair \ud800")
    with pytest.raises(PayloadError, match="cannot be stored") as raised:
        await handle.save(harness.state)
    await handle.fail(raised.value)
    assert await harness.load_texts() == ["good"]
    assert await harness.list_statuses() == {"r": RunStatus.FAILED}


async def test_a_transcript_over_the_cap_parks_the_run_and_what_was_saved_stays(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(max_transcript_bytes=1000)
    harness.add_message("good")
    await handle.save(harness.state)
    harness.add_message("x" * 1000)
    with pytest.raises(TranscriptTooLarge, match=r"exceeds 1000: compact it or raise max_transcript_bytes") as raised:
        await handle.save(harness.state)
    assert isinstance(raised.value, RunParked)
    assert raised.value.reason == "size"
    await handle.leave(Leave(AttemptEnd.PARKED, reason=raised.value.message))
    assert await harness.load_texts() == ["good"]
    assert await harness.list_statuses() == {"r": RunStatus.PARKED}


async def test_a_compacted_transcript_counts_as_what_it_is_now(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(max_transcript_bytes=1000)
    harness.add_message("x" * 700)
    await handle.save(harness.state)
    harness.state.history.rewrite([User("short")])
    await handle.save(harness.state)
    harness.add_message("y" * 600)
    await handle.save(harness.state)
    assert await harness.load_texts() == ["short", "y" * 600]
