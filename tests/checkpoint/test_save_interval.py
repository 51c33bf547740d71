"""Throttled saves, and saves that fail."""

import asyncio
from datetime import timedelta

import pytest
from tests.checkpoint.harness import SECOND, CheckpointerHarness

from holdfast.checkpoint.errors import ClaimLost, StoreFull, StoreUnavailable
from holdfast.checkpoint.record import RunStatus
from holdfast.core.message import User

# -- 2: the throttle --------------------------------------------------------------------------------------------------


async def test_the_first_save_is_never_throttled(harness: CheckpointerHarness) -> None:
    harness.add_message("one")
    await harness.make_checkpointer(throttle=10 * SECOND).save(harness.state)
    assert await harness.load_texts() == ["one"]


async def test_saves_inside_the_window_are_skipped_and_the_newest_is_written_when_it_closes(
    harness: CheckpointerHarness,
) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    for text in ("one", "two", "three"):
        harness.add_message(text)
        await handle.save(harness.state)
        await harness.clock.advance(SECOND)
    assert await harness.load_texts() == ["one"]
    await harness.clock.advance(6 * SECOND)
    assert await harness.load_texts() == ["one"]
    await harness.clock.advance(SECOND)
    assert await harness.load_texts() == ["one", "two", "three"]
    assert len(harness.store.writes) == 2


async def test_every_window_ends_with_a_write_so_that_at_most_one_window_is_lost(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    for second in range(100):
        harness.add_message(str(second))
        await handle.save(harness.state)
        assert second - int((await harness.load_texts())[-1]) <= 10
        await harness.clock.advance(SECOND)
    assert len(harness.store.writes) <= 11


@pytest.mark.parametrize("throttle", [timedelta(0), -SECOND])
async def test_a_throttle_of_zero_or_less_saves_every_call(harness: CheckpointerHarness, throttle: timedelta) -> None:
    handle = harness.make_checkpointer(throttle=throttle)
    for number in range(5):
        harness.add_message(str(number))
        await handle.save(harness.state)
        assert (await harness.load_texts())[-1] == str(number)
    assert harness.clock.waiting == 0


async def test_an_urgent_save_is_not_throttled_and_takes_along_what_was_held_back(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    await handle.save(harness.state)
    harness.add_message("held back")
    await handle.save(harness.state)
    harness.add_message("urgent")
    await handle.save(harness.state, force=True)
    assert await harness.load_texts() == ["held back", "urgent"]
    await harness.clock.advance(20 * SECOND)
    assert len(harness.store.writes) == 2


async def test_what_is_held_back_while_a_write_is_under_way_is_still_written(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    await handle.save(harness.state)
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def gate(method: str) -> None:
        reached.set()
        await go_on.wait()

    harness.store.before = gate
    harness.add_message("urgent")
    writing = asyncio.create_task(handle.save(harness.state, force=True))
    await reached.wait()
    harness.add_message("came between")
    await handle.save(harness.state)
    go_on.set()
    await writing
    assert await harness.load_texts() == ["urgent"]
    await harness.clock.advance(10 * SECOND)
    assert await harness.load_texts() == ["urgent", "came between"]


async def test_releasing_writes_what_the_throttle_held_back(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    await handle.save(harness.state)
    harness.add_message("held back")
    await handle.save(harness.state)
    await handle.release()
    assert await harness.load_texts() == ["held back"]
    assert harness.clock.waiting == 0


async def test_releasing_writes_a_rewritten_history_that_the_throttle_held_back(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    harness.add_message("long")
    await handle.save(harness.state)
    harness.state.history.rewrite([User("short")])
    await handle.save(harness.state)
    await handle.release()
    assert await harness.load_texts() == ["short"]


async def test_a_run_is_left_even_if_what_was_held_back_cannot_be_saved(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    harness.add_message("good")
    await handle.save(harness.state)
    harness.add_message("half a pair \ud800")
    await handle.save(harness.state)
    await handle.release()
    assert await harness.list_statuses() == {"r": RunStatus.INTERRUPTED}
    assert await harness.load_texts() == ["good"]


async def test_proving_the_claim_is_no_save_for_the_throttle(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    await handle.save(harness.state)
    await harness.clock.advance(9 * SECOND)
    await handle.verify_claim()
    await harness.clock.advance(SECOND)
    harness.add_message("one")
    await handle.save(harness.state)
    assert await harness.load_texts() == ["one"]


# -- 3: a write that failed moves nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble", [StoreUnavailable("gone"), StoreFull("full"), OSError("a host's own store")], ids=repr
)
async def test_a_failed_first_save_leaves_nothing_and_the_next_sends_all(
    harness: CheckpointerHarness, trouble: Exception
) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    harness.store.fail("create", trouble)
    harness.add_message("one")
    with pytest.raises(type(trouble)):
        await handle.save(harness.state)
    assert await harness.list_statuses() == {}
    harness.add_message("two")
    await handle.save(harness.state)
    assert await harness.load_texts() == ["one", "two"]


@pytest.mark.parametrize(
    "trouble", [StoreUnavailable("gone"), StoreFull("full"), OSError("a host's own store")], ids=repr
)
async def test_a_failed_save_moves_neither_the_throttle_nor_the_mark(
    harness: CheckpointerHarness, trouble: Exception
) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    await handle.save(harness.state)
    await harness.clock.advance(10 * SECOND)
    harness.store.fail("append", trouble)
    harness.add_message("one")
    with pytest.raises(type(trouble)):
        await handle.save(harness.state)
    harness.add_message("two")
    await handle.save(harness.state)  # not throttled: the failed one did not count
    assert await harness.load_texts() == ["one", "two"]
    assert [entry.seq for write in harness.store.writes for entry in write] == [0, 1, 2]


async def test_a_throttled_write_that_failed_is_tried_again_without_being_asked(
    harness: CheckpointerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    await handle.save(harness.state)
    harness.add_message("one")
    await handle.save(harness.state)
    harness.store.fail("append", StoreUnavailable("gone"))
    await harness.clock.advance(10 * SECOND)
    assert await harness.load_texts() == []
    assert "a throttled save failed" in caplog.text
    await harness.clock.advance(10 * SECOND)
    assert await harness.load_texts() == ["one"]


async def test_a_failed_save_is_tried_again_when_the_window_closes(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(throttle=10 * SECOND)
    await handle.save(harness.state)
    await harness.clock.advance(10 * SECOND)
    harness.store.fail("append", StoreUnavailable("gone"))
    harness.add_message("one")
    with pytest.raises(StoreUnavailable):
        await handle.save(harness.state)
    await harness.clock.advance(10 * SECOND)
    assert await harness.load_texts() == ["one"]


async def test_an_urgent_save_waits_for_a_store_that_does_not_answer(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(store_timeout=10 * SECOND)
    await handle.save(harness.state)
    harness.store.fail("append", *[StoreUnavailable("gone")] * 5)
    harness.add_message("one")
    saving = asyncio.create_task(handle.save(harness.state, force=True))
    await harness.clock.advance(9 * SECOND)
    assert saving.done()
    await saving
    assert await harness.load_texts() == ["one"]


async def test_the_timeout_of_an_urgent_save_has_an_end(harness: CheckpointerHarness) -> None:
    handle = harness.make_checkpointer(store_timeout=10 * SECOND)
    await handle.save(harness.state)
    harness.store.fail("append", *[StoreUnavailable("gone")] * 1000)
    harness.add_message("one")
    saving = asyncio.create_task(handle.save(harness.state, force=True))
    await harness.clock.advance(11 * SECOND)
    with pytest.raises(StoreUnavailable):
        await saving


@pytest.mark.parametrize("trouble", [StoreFull("full"), ClaimLost("r", 1, 2)])
async def test_only_a_store_that_does_not_answer_is_asked_again(
    harness: CheckpointerHarness, trouble: Exception
) -> None:
    handle = harness.make_checkpointer(store_timeout=10 * SECOND)
    await handle.save(harness.state)
    harness.store.fail("append", trouble)
    harness.add_message("one")
    with pytest.raises(type(trouble)):
        await handle.save(harness.state, force=True)
