"""The handle of one run on a store: how runs end, and what a handle may still write."""

import asyncio
from datetime import timedelta

import pytest
from tests.checkpoint.desk import SECOND, Desk
from tests.probe_store import ProbeStore

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.codec import Outcome, decode
from holdfast.checkpoint.errors import ClaimLost, RunExists, StoreFull, StoreUnavailable, TranscriptTooLarge
from holdfast.checkpoint.handle import NoCheckpointer
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.lifecycle import Status
from holdfast.run.errors import PayloadError, RunCancelled, RunParked
from holdfast.run.message import User
from holdfast.run.state import RunState
from holdfast.run.usage import NO_USAGE, Usage

# -- 1: over is over --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_a_run_that_was_saved_and_then_ended_leaves_nothing_to_recover(desk: Desk, end: str) -> None:
    handle = desk.handle()
    desk.say("one")
    await handle.save(desk.state)
    if end == "complete":
        await handle.complete("out", NO_USAGE)
    else:
        await handle.fail(RunCancelled() if end == "cancel" else ValueError("broken"))
    await desk.inner.discharge("w")
    assert await desk.candidates() == []
    assert await desk.runs() == {}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("x"), Status.FAILED),
        (RunCancelled(), Status.CANCELLED),
        (asyncio.CancelledError(), Status.CANCELLED),
    ],
)
async def test_a_failed_run_that_is_kept_is_no_candidate_either(
    desk: Desk, error: BaseException, status: Status
) -> None:
    handle = desk.handle(keep_failed=timedelta(days=1))
    await handle.save(desk.state)
    await handle.fail(error)
    await desk.inner.discharge("w")
    assert await desk.runs() == {"r": status}
    assert await desk.candidates() == []
    await desk.clock.advance(timedelta(days=2))
    assert await desk.inner.purge() == 1


async def test_the_end_of_a_run_that_somebody_waits_for_is_kept_with_its_usage(desk: Desk) -> None:
    handle = desk.handle(keep_result=True)
    await handle.save(desk.state)
    desk.say("unsaved")
    await handle.complete({"answer": 42}, Usage(requests=7))
    assert await desk.runs() == {"r": Status.DONE}
    stored = await desk.inner.load("r")
    assert decode(stored.entries[-1].body, Outcome) == Outcome(output={"answer": 42}, usage=Usage(requests=7))
    assert await desk.saved() == ["unsaved"]


async def test_a_run_that_never_reached_the_store_ends_without_touching_it(desk: Desk) -> None:
    for end in ("complete", "fail", "park", "release"):
        handle = desk.handle()
        await {
            "complete": lambda handle=handle: handle.complete(None, NO_USAGE),
            "fail": lambda handle=handle: handle.fail(ValueError()),
            "park": lambda handle=handle: handle.park("why"),
            "release": lambda handle=handle: handle.release(),
        }[end]()
    assert desk.store.calls == []


async def test_a_parked_run_keeps_its_reason_and_is_no_candidate(desk: Desk) -> None:
    handle = desk.handle()
    desk.say("one")
    await handle.save(desk.state)
    desk.say("two")
    await handle.park("approval: pay 5 EUR")
    record = await desk.record()
    assert (record.status, record.reason, record.interrupted) == (Status.PARKED, "approval: pay 5 EUR", False)
    assert await desk.saved() == ["one", "two"]


async def test_a_released_run_is_a_candidate_without_a_strike(desk: Desk) -> None:
    handle = desk.handle()
    desk.say("one")
    await handle.save(desk.state)
    await handle.release()
    record = await desk.record()
    assert (record.status, record.interrupted, record.strikes) == (Status.INTERRUPTED, True, 0)


# -- 4: no store ------------------------------------------------------------------------------------------------------


async def test_without_a_store_every_method_succeeds_and_does_nothing() -> None:
    handle = NoCheckpointer()
    state = RunState()
    state.history.append(object())  # could not be stored
    await handle.save(state)
    await handle.save(state, urgent=True)
    await handle.confirm()
    await handle.park("why")
    await handle.release()
    await handle.release("why", SECOND)
    await handle.fail(ValueError())
    await handle.complete(object(), NO_USAGE)
    await handle.save(state)


# -- 8: after the end -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["complete", "fail", "park", "release"])
@pytest.mark.parametrize("late", ["late", "throttled", "waiting for the lock", "concurrent"])
async def test_no_save_brings_a_run_back_that_was_settled(desk: Desk, end: str, late: str) -> None:
    handle = desk.handle(throttle=10 * SECOND)

    async def settle() -> None:
        if end == "complete":
            await handle.complete("out", NO_USAGE)
        elif end == "fail":
            await handle.fail(ValueError())
        elif end == "park":
            await handle.park("why")
        else:
            await handle.release()

    await handle.save(desk.state)
    saves: list[asyncio.Task[None]] = []
    if late == "throttled":
        desk.say("held back")
        await handle.save(desk.state)
        await settle()
    elif late == "late":
        await settle()
        desk.say("late")
        await handle.save(desk.state)
        await handle.save(desk.state, urgent=True)
        await handle.confirm()
    else:
        desk.store.turns = 3
        desk.say("before")
        saves = [asyncio.create_task(handle.save(desk.state, urgent=True)) for _ in range(3)]
        await asyncio.sleep(0)
        if late == "concurrent":
            saves.append(asyncio.create_task(settle()))
        await settle()
    await asyncio.gather(*saves)
    settled = desk.store.calls[-1]
    expected = {"complete": {}, "fail": {}, "park": {"r": Status.PARKED}, "release": {"r": Status.INTERRUPTED}}[end]
    assert await desk.runs() == expected
    desk.say("much later")
    await handle.save(desk.state, urgent=True)
    await desk.clock.advance(60 * SECOND)
    assert settled in ("remove", "settle")
    assert desk.store.calls[-1] == settled
    assert await desk.runs() == expected


async def test_the_first_way_to_end_decides(desk: Desk) -> None:
    handle = desk.handle(keep_result=True)
    await handle.save(desk.state)
    await handle.park("first")
    await handle.complete("second", NO_USAGE)
    assert await desk.runs() == {"r": Status.PARKED}


# -- 9: concurrent saves ----------------------------------------------------------------------------------------------


async def test_concurrent_saves_write_no_entry_twice_and_none_out_of_order(desk: Desk) -> None:
    handle = desk.handle()
    desk.store.turns = 2

    async def one_of_many(number: int) -> None:
        for turn in range(10):
            desk.say(f"{number}.{turn}")
            await handle.save(desk.state, urgent=bool(turn % 2))

    await asyncio.gather(*(one_of_many(number) for number in range(10)))
    entries = (await desk.inner.load("r")).entries
    assert [entry.seq for entry in entries] == list(range(101))
    assert await desk.saved() == [message.text for message in desk.state.history]


async def test_concurrent_saves_stay_in_order_when_writes_fail(desk: Desk) -> None:
    handle = desk.handle()
    desk.store.turns = 2
    calls = 0

    async def every_third_fails(method: str) -> None:
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise StoreFull("full")

    desk.store.before = every_third_fails

    refused = 0

    async def one_of_many(number: int) -> None:
        nonlocal refused
        for turn in range(10):
            desk.say(f"{number}.{turn}")
            try:
                await handle.save(desk.state)
            except StoreFull:
                refused += 1

    await asyncio.gather(*(one_of_many(number) for number in range(5)))
    assert refused > 0
    desk.store.before = None
    desk.say("last")
    await handle.save(desk.state)
    assert await desk.saved() == [message.text for message in desk.state.history]


# -- the claim --------------------------------------------------------------------------------------------------------


async def test_a_handle_that_lost_its_claim_writes_nothing_more(desk: Desk) -> None:
    handle = desk.handle()
    await handle.save(desk.state)
    await desk.inner.claim("r", "other", steal=True)
    desk.say("stale")
    for _ in range(2):
        with pytest.raises(ClaimLost):
            await handle.save(desk.state)
    with pytest.raises(ClaimLost):
        await handle.complete("stale", NO_USAGE)
    assert await desk.saved() == []
    assert await desk.runs() == {"r": Status.RUNNING}


async def test_a_claim_is_proven_by_a_write_unless_one_was_just_made(desk: Desk) -> None:
    handle = desk.handle()
    await handle.save(desk.state)
    await handle.confirm()
    assert len(desk.store.writes) == 1
    await desk.clock.advance(2 * SECOND)
    await handle.confirm()
    assert len(desk.store.writes) == 2
    await desk.inner.claim("r", "other", steal=True)
    await handle.confirm()  # within the second that a proof lasts
    await desk.clock.advance(2 * SECOND)
    with pytest.raises(ClaimLost):
        await handle.confirm()


class LateStore(ProbeStore):
    """Takes writes at once; the answers to some come a minute later, when somebody else may own the run."""

    def __init__(self, desk: Desk, *, late: int, stolen: bool) -> None:
        super().__init__(desk.inner)
        self._clock, self._late, self._stolen = desk.clock, late, stolen

    async def append(self, claim: Claim, write: Write) -> None:
        await super().append(claim, write)
        if self._late > 0:
            self._late -= 1
            if self._stolen:
                await self.inner.claim("r", "other", steal=True)
            await self._clock.advance(60 * SECOND)


@pytest.mark.parametrize("after_a_save", [True, False])
async def test_a_proof_whose_answer_comes_late_is_none(desk: Desk, after_a_save: bool) -> None:
    desk.store = LateStore(desk, late=1, stolen=True)
    handle = desk.handle()
    await handle.save(desk.state)
    if after_a_save:
        desk.say("hello")
        await handle.save(desk.state)
    else:
        await desk.clock.advance(2 * SECOND)
    with pytest.raises(ClaimLost):
        await handle.confirm()


async def test_a_store_that_is_always_slow_is_believed_in_the_end(desk: Desk) -> None:
    desk.store = LateStore(desk, late=10, stolen=False)
    handle = desk.handle()
    await handle.save(desk.state)
    await desk.clock.advance(2 * SECOND)
    await handle.confirm()
    assert len(desk.store.writes) == 3


async def test_a_save_that_had_to_be_repeated_proves_the_claim_as_of_its_last_attempt(desk: Desk) -> None:
    handle = desk.handle()
    await handle.save(desk.state)
    desk.say("hello")
    desk.store.fail("append", *[StoreUnavailable("no answer")] * 6)
    save = asyncio.create_task(handle.save(desk.state, urgent=True))
    while not save.done():
        await desk.clock.advance(timedelta(milliseconds=50))
    await handle.confirm()
    assert len(desk.store.writes) == 2


async def test_proving_the_claim_is_no_progress(desk: Desk) -> None:
    handle = desk.handle()
    await handle.save(desk.state)
    await desk.clock.advance(2 * SECOND)
    await handle.confirm()
    record = await desk.record()
    assert record.strikes == 1


async def test_a_run_id_that_is_taken_is_refused_and_the_other_run_is_untouched(desk: Desk) -> None:
    desk.say("first")
    await desk.handle().save(desk.state)
    second = desk.handle()
    other = RunState()
    other.history.append(User("second"))
    with pytest.raises(RunExists, match="choose another id"):
        await second.save(other)
    await second.fail(ValueError())
    assert await desk.saved() == ["first"]
    assert await desk.runs() == {"r": Status.RUNNING}


# -- what cannot be saved ---------------------------------------------------------------------------------------------


async def test_a_message_that_cannot_be_encoded_is_refused_and_what_was_saved_stays(desk: Desk) -> None:
    handle = desk.handle(keep_failed=timedelta(days=1))
    desk.say("good")
    await handle.save(desk.state)
    desk.say("half a pair \ud800")
    with pytest.raises(PayloadError, match="cannot be stored") as raised:
        await handle.save(desk.state)
    await handle.fail(raised.value)
    assert await desk.saved() == ["good"]
    assert await desk.runs() == {"r": Status.FAILED}


async def test_a_transcript_over_the_cap_parks_the_run_and_what_was_saved_stays(desk: Desk) -> None:
    handle = desk.handle(max_bytes=1000)
    desk.say("good")
    await handle.save(desk.state)
    desk.say("x" * 1000)
    with pytest.raises(TranscriptTooLarge, match=r"over the cap of 1000: compact it or raise max_bytes") as raised:
        await handle.save(desk.state)
    assert isinstance(raised.value, RunParked)
    assert raised.value.reason == "size"
    await handle.park(raised.value.why)
    assert await desk.saved() == ["good"]
    assert await desk.runs() == {"r": Status.PARKED}


async def test_a_compacted_transcript_counts_as_what_it_is_now(desk: Desk) -> None:
    handle = desk.handle(max_bytes=1000)
    desk.say("x" * 700)
    await handle.save(desk.state)
    desk.state.history.rewrite([User("short")])
    await handle.save(desk.state)
    desk.say("y" * 600)
    await handle.save(desk.state)
    assert await desk.saved() == ["short", "y" * 600]
