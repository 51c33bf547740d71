"""Deferred saves, and saves that fail."""

import asyncio
from datetime import timedelta

import pytest
from tests.checkpoint.harness import SECOND, CheckpointerHarness

from holdfast.checkpoint.errors import ClaimLost, StoreFull, StoreUnavailable
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings, Retention
from holdfast.core.errors import DefinitionError
from holdfast.core.ports import Leave
from holdfast.core.run.messages import User

# -- the save interval ------------------------------------------------------------------------------------------------


async def test_the_first_save_is_never_deferred(harness: CheckpointerHarness) -> None:
    harness.add_message("one")
    await harness.make_checkpointer(save_interval=10 * SECOND).save(harness.state)
    assert await harness.load_texts() == ["one"]


async def test_saves_within_the_interval_are_deferred_and_the_newest_is_written_when_it_ends(
    harness: CheckpointerHarness,
) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    for text in ("one", "two", "three"):
        harness.add_message(text)
        await checkpointer.save(harness.state)
        await harness.clock.advance(SECOND)
    assert await harness.load_texts() == ["one"]
    await harness.clock.advance(6 * SECOND)
    assert await harness.load_texts() == ["one"]
    await harness.clock.advance(SECOND)
    assert await harness.load_texts() == ["one", "two", "three"]
    assert len(harness.store.writes) == 2


async def test_every_interval_ends_with_a_write_so_that_at_most_one_interval_is_lost(
    harness: CheckpointerHarness,
) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    for second in range(100):
        harness.add_message(str(second))
        await checkpointer.save(harness.state)
        assert second - int((await harness.load_texts())[-1]) <= 10
        await harness.clock.advance(SECOND)
    assert len(harness.store.writes) <= 11


async def test_a_save_interval_of_zero_saves_every_call(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(save_interval=timedelta(0))
    for number in range(5):
        harness.add_message(str(number))
        await checkpointer.save(harness.state)
        assert (await harness.load_texts())[-1] == str(number)
    assert harness.clock.waiting == 0


def test_a_negative_save_interval_is_refused() -> None:
    with pytest.raises(DefinitionError, match="save_interval"):
        CheckpointSettings(save_interval=-SECOND)


async def test_a_forced_save_is_not_deferred_and_includes_the_deferred_state(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    await checkpointer.save(harness.state)
    harness.add_message("deferred")
    await checkpointer.save(harness.state)
    harness.add_message("forced")
    await checkpointer.save(harness.state, force=True)
    assert await harness.load_texts() == ["deferred", "forced"]
    await harness.clock.advance(20 * SECOND)
    assert len(harness.store.writes) == 2


async def test_a_state_deferred_during_a_write_is_still_written(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    await checkpointer.save(harness.state)
    reached, proceed = asyncio.Event(), asyncio.Event()

    async def gate(method: str) -> None:
        reached.set()
        await proceed.wait()

    harness.store.before = gate
    harness.add_message("forced")
    writing = asyncio.create_task(checkpointer.save(harness.state, force=True))
    await reached.wait()
    harness.add_message("came between")
    await checkpointer.save(harness.state)
    proceed.set()
    await writing
    assert await harness.load_texts() == ["forced"]
    await harness.clock.advance(10 * SECOND)
    assert await harness.load_texts() == ["forced", "came between"]


async def test_releasing_writes_the_deferred_state(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    await checkpointer.save(harness.state)
    harness.add_message("deferred")
    await checkpointer.save(harness.state)
    await checkpointer.leave(Leave())
    assert await harness.load_texts() == ["deferred"]
    assert harness.clock.waiting == 0


async def test_releasing_writes_a_deferred_rewritten_history(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    harness.add_message("long")
    await checkpointer.save(harness.state)
    harness.state.history.rewrite([User("short")])
    await checkpointer.save(harness.state)
    await checkpointer.leave(Leave())
    assert await harness.load_texts() == ["short"]


@pytest.mark.parametrize("end", ["leave", "fail"])
async def test_a_rewritten_history_that_cannot_be_saved_is_not_added_to_the_old_one(
    harness: CheckpointerHarness, end: str
) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND, retention=Retention())
    harness.add_message("long")
    await checkpointer.save(harness.state)
    harness.state.history.rewrite([User("short")])
    await checkpointer.save(harness.state)
    harness.store.fail("append", StoreFull("no room"))
    await (checkpointer.leave(Leave()) if end == "leave" else checkpointer.fail(ValueError("broken")))
    assert await harness.list_statuses() == {"r": RunStatus.INTERRUPTED if end == "leave" else RunStatus.FAILED}
    assert await harness.load_texts() == ["long"]


async def test_a_run_is_released_even_if_its_deferred_state_cannot_be_saved(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    harness.add_message("good")
    await checkpointer.save(harness.state)
    harness.add_message("half a pair \ud800")
    await checkpointer.save(harness.state)
    await checkpointer.leave(Leave())
    assert await harness.list_statuses() == {"r": RunStatus.INTERRUPTED}
    assert await harness.load_texts() == ["good"]


async def test_verifying_the_claim_does_not_start_a_save_interval(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    await checkpointer.save(harness.state)
    await harness.clock.advance(9 * SECOND)
    await checkpointer.verify()
    await harness.clock.advance(SECOND)
    harness.add_message("one")
    await checkpointer.save(harness.state)
    assert await harness.load_texts() == ["one"]


# -- a failed write changes nothing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [StoreUnavailable("gone"), StoreFull("full"), OSError("a host's own store")], ids=repr
)
async def test_a_failed_first_save_leaves_nothing_and_the_next_sends_all(
    harness: CheckpointerHarness, error: Exception
) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    harness.store.fail("create", error)
    harness.add_message("one")
    with pytest.raises(type(error)):
        await checkpointer.save(harness.state)
    assert await harness.list_statuses() == {}
    harness.add_message("two")
    await checkpointer.save(harness.state)
    assert await harness.load_texts() == ["one", "two"]


@pytest.mark.parametrize(
    "error", [StoreUnavailable("gone"), StoreFull("full"), OSError("a host's own store")], ids=repr
)
async def test_a_failed_save_changes_neither_the_interval_nor_the_watermark(
    harness: CheckpointerHarness, error: Exception
) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    await checkpointer.save(harness.state)
    await harness.clock.advance(10 * SECOND)
    harness.store.fail("append", error)
    harness.add_message("one")
    with pytest.raises(type(error)):
        await checkpointer.save(harness.state)
    harness.add_message("two")
    await checkpointer.save(harness.state)  # not deferred: the failed one did not count
    assert await harness.load_texts() == ["one", "two"]
    assert [entry.seq for write in harness.store.writes for entry in write] == [0, 1, 2]


async def test_a_deferred_write_that_failed_is_retried_by_itself(
    harness: CheckpointerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    await checkpointer.save(harness.state)
    harness.add_message("one")
    await checkpointer.save(harness.state)
    harness.store.fail("append", StoreUnavailable("gone"))
    await harness.clock.advance(10 * SECOND)
    assert await harness.load_texts() == []
    assert "a deferred save failed" in caplog.text
    await harness.clock.advance(10 * SECOND)
    assert await harness.load_texts() == ["one"]


async def test_a_failed_save_is_retried_when_the_interval_ends(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(save_interval=10 * SECOND)
    await checkpointer.save(harness.state)
    await harness.clock.advance(10 * SECOND)
    harness.store.fail("append", StoreUnavailable("gone"))
    harness.add_message("one")
    with pytest.raises(StoreUnavailable):
        await checkpointer.save(harness.state)
    await harness.clock.advance(10 * SECOND)
    assert await harness.load_texts() == ["one"]


async def test_a_forced_save_waits_for_an_unavailable_store(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(store_timeout=10 * SECOND)
    await checkpointer.save(harness.state)
    harness.store.fail("append", *[StoreUnavailable("gone")] * 5)
    harness.add_message("one")
    saving = asyncio.create_task(checkpointer.save(harness.state, force=True))
    await harness.clock.advance(9 * SECOND)
    assert saving.done()
    await saving
    assert await harness.load_texts() == ["one"]


async def test_a_forced_save_raises_after_the_store_timeout(harness: CheckpointerHarness) -> None:
    checkpointer = harness.make_checkpointer(store_timeout=10 * SECOND)
    await checkpointer.save(harness.state)
    harness.store.fail("append", *[StoreUnavailable("gone")] * 1000)
    harness.add_message("one")
    saving = asyncio.create_task(checkpointer.save(harness.state, force=True))
    await harness.clock.advance(11 * SECOND)
    with pytest.raises(StoreUnavailable):
        await saving


@pytest.mark.parametrize("error", [StoreFull("full"), ClaimLost("r", 1, 2)])
async def test_only_an_unavailable_store_is_asked_again(harness: CheckpointerHarness, error: Exception) -> None:
    checkpointer = harness.make_checkpointer(store_timeout=10 * SECOND)
    await checkpointer.save(harness.state)
    harness.store.fail("append", error)
    harness.add_message("one")
    with pytest.raises(type(error)):
        await checkpointer.save(harness.state, force=True)
