"""Throttled saves, and saves that fail."""

import asyncio
from datetime import timedelta

import pytest
from tests.checkpoint.desk import SECOND, Desk

from holdfast.checkpoint.errors import ClaimLost, StoreFull, StoreUnavailable
from holdfast.checkpoint.lifecycle import Status
from holdfast.run.message import User

# -- 2: the throttle --------------------------------------------------------------------------------------------------


async def test_the_first_save_is_never_throttled(desk: Desk) -> None:
    desk.say("one")
    await desk.handle(throttle=10 * SECOND).save(desk.state)
    assert await desk.saved() == ["one"]


async def test_saves_inside_the_window_are_skipped_and_the_newest_is_written_when_it_closes(desk: Desk) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    for text in ("one", "two", "three"):
        desk.say(text)
        await handle.save(desk.state)
        await desk.clock.advance(SECOND)
    assert await desk.saved() == ["one"]
    await desk.clock.advance(6 * SECOND)
    assert await desk.saved() == ["one"]
    await desk.clock.advance(SECOND)
    assert await desk.saved() == ["one", "two", "three"]
    assert len(desk.store.writes) == 2


async def test_every_window_ends_with_a_write_so_that_at_most_one_window_is_lost(desk: Desk) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    for second in range(100):
        desk.say(str(second))
        await handle.save(desk.state)
        assert second - int((await desk.saved())[-1]) <= 10
        await desk.clock.advance(SECOND)
    assert len(desk.store.writes) <= 11


@pytest.mark.parametrize("throttle", [timedelta(0), -SECOND])
async def test_a_throttle_of_zero_or_less_saves_every_call(desk: Desk, throttle: timedelta) -> None:
    handle = desk.handle(throttle=throttle)
    for number in range(5):
        desk.say(str(number))
        await handle.save(desk.state)
        assert (await desk.saved())[-1] == str(number)
    assert desk.clock.waiting == 0


async def test_an_urgent_save_is_not_throttled_and_takes_along_what_was_held_back(desk: Desk) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    await handle.save(desk.state)
    desk.say("held back")
    await handle.save(desk.state)
    desk.say("urgent")
    await handle.save(desk.state, urgent=True)
    assert await desk.saved() == ["held back", "urgent"]
    await desk.clock.advance(20 * SECOND)
    assert len(desk.store.writes) == 2


async def test_what_is_held_back_while_a_write_is_under_way_is_still_written(desk: Desk) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    await handle.save(desk.state)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def gate(method: str) -> None:
        reached.set()
        await go_on.wait()

    desk.store.before = gate
    desk.say("urgent")
    writing = asyncio.create_task(handle.save(desk.state, urgent=True))
    await reached.wait()
    desk.say("came between")
    await handle.save(desk.state)
    go_on.set()
    await writing
    assert await desk.saved() == ["urgent"]
    await desk.clock.advance(10 * SECOND)
    assert await desk.saved() == ["urgent", "came between"]


async def test_releasing_writes_what_the_throttle_held_back(desk: Desk) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    await handle.save(desk.state)
    desk.say("held back")
    await handle.save(desk.state)
    await handle.release()
    assert await desk.saved() == ["held back"]
    assert desk.clock.waiting == 0


async def test_releasing_writes_a_rewritten_history_that_the_throttle_held_back(desk: Desk) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    desk.say("long")
    await handle.save(desk.state)
    desk.state.history.rewrite([User("short")])
    await handle.save(desk.state)
    await handle.release()
    assert await desk.saved() == ["short"]


async def test_a_run_is_left_even_if_what_was_held_back_cannot_be_saved(desk: Desk) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    desk.say("good")
    await handle.save(desk.state)
    desk.say("half a pair \ud800")
    await handle.save(desk.state)
    await handle.release()
    assert await desk.runs() == {"r": Status.INTERRUPTED}
    assert await desk.saved() == ["good"]


async def test_proving_the_claim_is_no_save_for_the_throttle(desk: Desk) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    await handle.save(desk.state)
    await desk.clock.advance(9 * SECOND)
    await handle.confirm()
    await desk.clock.advance(SECOND)
    desk.say("one")
    await handle.save(desk.state)
    assert await desk.saved() == ["one"]


# -- 3: a write that failed moves nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble", [StoreUnavailable("gone"), StoreFull("full"), OSError("a host's own store")], ids=repr
)
async def test_a_failed_first_save_leaves_nothing_and_the_next_sends_all(desk: Desk, trouble: Exception) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    desk.store.fail("create", trouble)
    desk.say("one")
    with pytest.raises(type(trouble)):
        await handle.save(desk.state)
    assert await desk.runs() == {}
    desk.say("two")
    await handle.save(desk.state)
    assert await desk.saved() == ["one", "two"]


@pytest.mark.parametrize(
    "trouble", [StoreUnavailable("gone"), StoreFull("full"), OSError("a host's own store")], ids=repr
)
async def test_a_failed_save_moves_neither_the_throttle_nor_the_mark(desk: Desk, trouble: Exception) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    await handle.save(desk.state)
    await desk.clock.advance(10 * SECOND)
    desk.store.fail("append", trouble)
    desk.say("one")
    with pytest.raises(type(trouble)):
        await handle.save(desk.state)
    desk.say("two")
    await handle.save(desk.state)  # not throttled: the failed one did not count
    assert await desk.saved() == ["one", "two"]
    assert [entry.seq for write in desk.store.writes for entry in write] == [0, 1, 2]


async def test_a_throttled_write_that_failed_is_tried_again_without_being_asked(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    await handle.save(desk.state)
    desk.say("one")
    await handle.save(desk.state)
    desk.store.fail("append", StoreUnavailable("gone"))
    await desk.clock.advance(10 * SECOND)
    assert await desk.saved() == []
    assert "a throttled save failed" in caplog.text
    await desk.clock.advance(10 * SECOND)
    assert await desk.saved() == ["one"]


async def test_a_failed_save_is_tried_again_when_the_window_closes(desk: Desk) -> None:
    handle = desk.handle(throttle=10 * SECOND)
    await handle.save(desk.state)
    await desk.clock.advance(10 * SECOND)
    desk.store.fail("append", StoreUnavailable("gone"))
    desk.say("one")
    with pytest.raises(StoreUnavailable):
        await handle.save(desk.state)
    await desk.clock.advance(10 * SECOND)
    assert await desk.saved() == ["one"]


async def test_an_urgent_save_waits_for_a_store_that_does_not_answer(desk: Desk) -> None:
    handle = desk.handle(patience=10 * SECOND)
    await handle.save(desk.state)
    desk.store.fail("append", *[StoreUnavailable("gone")] * 5)
    desk.say("one")
    saving = asyncio.create_task(handle.save(desk.state, urgent=True))
    await desk.clock.advance(9 * SECOND)
    assert saving.done()
    await saving
    assert await desk.saved() == ["one"]


async def test_the_patience_of_an_urgent_save_has_an_end(desk: Desk) -> None:
    handle = desk.handle(patience=10 * SECOND)
    await handle.save(desk.state)
    desk.store.fail("append", *[StoreUnavailable("gone")] * 1000)
    desk.say("one")
    saving = asyncio.create_task(handle.save(desk.state, urgent=True))
    await desk.clock.advance(11 * SECOND)
    with pytest.raises(StoreUnavailable):
        await saving


@pytest.mark.parametrize("trouble", [StoreFull("full"), ClaimLost("r", 1, 2)])
async def test_only_a_store_that_does_not_answer_is_asked_again(desk: Desk, trouble: Exception) -> None:
    handle = desk.handle(patience=10 * SECOND)
    await handle.save(desk.state)
    desk.store.fail("append", trouble)
    desk.say("one")
    with pytest.raises(type(trouble)):
        await handle.save(desk.state, urgent=True)
