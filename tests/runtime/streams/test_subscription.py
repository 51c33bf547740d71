"""The queue of one watcher: no event twice, no unbounded waiting."""

import asyncio

import pytest

from holdfast.core.run.run_events import (
    DraftRetracted,
    Event,
    MessageAdded,
    ReaderTooSlow,
    ReasoningDelta,
    ReplyAdded,
    StatusChanged,
    StepStarted,
    TextDelta,
)
from holdfast.runtime.streams.subscription import Batch, Subscription


def message(seq: int) -> tuple[int, Event]:
    return seq, MessageAdded(run_id="r", cursor=f"a-{seq}-0", role="user", content=str(seq))


def reply(seq: int) -> tuple[int, Event]:
    return seq, ReplyAdded(run_id="r", cursor=f"a-{seq}-0", text="Hello")


def delta(text: str) -> TextDelta:
    return TextDelta(run_id="r", text=text)


def test_what_the_journal_and_the_feed_both_have_is_given_once() -> None:
    own = Subscription("r", None)
    assert own.accept(Batch(durable=[message(1), message(2)], position=2)) == [message(1)[1], message(2)[1]]
    assert own.accept(Batch(durable=[message(2), message(3)], position=3)) == [message(3)[1]]
    assert own.accept(Batch(durable=[message(1)], position=1)) == []
    assert own.accept(Batch(durable=[message(3), message(4)], position=4)) == [message(4)[1]]


def test_the_present_is_given_when_it_changes() -> None:
    own = Subscription("r", None)
    running, step = StatusChanged(run_id="r", status="running"), StepStarted(run_id="r", step=1)
    assert own.accept(Batch(present=[running, step])) == [running, step]
    again = StepStarted(run_id="r", step=2)
    assert own.accept(Batch(present=[running, again])) == [again]


def test_a_draft_whose_reply_the_watcher_has_is_not_given() -> None:
    own = Subscription("r", None)
    own.accept(Batch(durable=[reply(5)], position=5))
    assert own.accept(Batch(draft=[delta("Hel")], draft_seq=5)) == []
    assert own.accept(Batch(draft=[delta("Next")], draft_seq=6)) == [delta("Next")]


def test_only_a_draft_that_was_given_is_retracted() -> None:
    own, retracted = Subscription("r", None), DraftRetracted(run_id="r")
    assert own.accept(Batch(draft=[retracted], draft_seq=3)) == []
    assert own.accept(Batch(draft=[delta("Hel"), retracted, delta("Hi")], draft_seq=3)) == [
        delta("Hel"),
        retracted,
        delta("Hi"),
    ]
    own.accept(Batch(durable=[reply(3)], position=3))
    assert own.accept(Batch(draft=[retracted], draft_seq=4)) == [], "the reply has taken the draft's place"


def test_a_draft_is_retracted_where_its_reply_was_rewritten_away() -> None:
    own, retracted = Subscription("r", None), DraftRetracted(run_id="r")
    own.accept(Batch(draft=[delta("Hel")], draft_seq=3))
    assert own.accept(Batch(durable=[message(8)], position=8, rewritten=5)) == [retracted, message(8)[1]]
    assert own.accept(Batch(draft=[retracted], draft_seq=8)) == [], "it is gone already"
    own.accept(Batch(draft=[delta("Next")], draft_seq=9))
    rewritten_with_reply = Batch(durable=[message(12), reply(13)], position=13, rewritten=9)
    assert own.accept(rewritten_with_reply) == [message(12)[1], reply(13)[1]], "the draft's reply is there"


async def test_deltas_that_wait_become_one() -> None:
    own = Subscription("r", None)
    for word in ("He", "l", "lo"):
        own.push(Batch(draft=[delta(word)], draft_seq=1, size=len(word)))
    own.push(Batch(draft=[ReasoningDelta(run_id="r", text="Hm")], draft_seq=1, size=2))
    own.push(Batch(draft=[delta("another")], draft_seq=2, size=7))
    own.end()
    taken = [events async for events in _take_all(own)]
    assert taken == [[delta("Hello")], [ReasoningDelta(run_id="r", text="Hm")], [delta("another")]]


_STATUS = StatusChanged(run_id="r", status="running")
_DELTA = Batch(draft=[delta("He")], draft_seq=1)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (_DELTA, Batch(draft=[delta("a"), delta("b")], draft_seq=1)),
        (Batch(draft=[delta("a"), delta("b")], draft_seq=1), _DELTA),
        (_DELTA, Batch(draft=[delta("a")], draft_seq=2)),
        (_DELTA, Batch(draft=[delta("a")], draft_seq=1, durable=[message(1)])),
        (Batch(draft=[delta("a")], draft_seq=1, durable=[message(1)]), _DELTA),
        (_DELTA, Batch(draft=[delta("a")], draft_seq=1, present=[_STATUS])),
        (Batch(draft=[delta("a")], draft_seq=1, present=[_STATUS]), _DELTA),
        (_DELTA, Batch(draft=[ReasoningDelta(run_id="r", text="Hm")], draft_seq=1)),
        (
            Batch(draft=[DraftRetracted(run_id="r")], draft_seq=1),
            Batch(draft=[DraftRetracted(run_id="r")], draft_seq=1),
        ),
        (Batch(durable=[message(1)], position=1), Batch(durable=[message(2)], position=2)),
    ],
)
async def test_batches_that_are_not_two_deltas_of_one_draft_stay_apart(first: Batch, second: Batch) -> None:
    apart, both = Subscription("r", None), Subscription("r", None)
    expected = [apart.accept(first), apart.accept(second)]
    both.push(first)
    both.push(second)
    both.end()
    assert [events async for events in _take_all(both)] == expected


async def _take_all(own: Subscription):  # type: ignore[no-untyped-def]
    while (events := await own.take()) is not None:
        yield events


@pytest.mark.parametrize(("batches", "size"), [(9, 2**20), (1_000, 0)])
async def test_a_slow_watcher_is_disconnected_with_its_cursor(batches: int, size: int) -> None:
    """Eight mebibytes behind the next batch, or a thousand batches, may wait. Not more."""
    own, slow = Subscription("r", "a-1-0"), Subscription("r", "a-1-0")
    for seq in range(batches):
        own.push(Batch(durable=[message(seq)], position=seq, size=size))
        slow.push(Batch(durable=[message(seq)], position=seq, size=size))
    assert await own.take() == [message(0)[1]]
    slow.push(Batch(durable=[message(batches)], position=batches, size=1))
    slow.push(Batch(durable=[message(9_999)], position=9_999))
    with pytest.raises(ReaderTooSlow) as caught:
        await slow.take()
    assert caught.value.cursor == "a-1-0"
    slow.cursor = "a-5-0"
    with pytest.raises(ReaderTooSlow) as caught:
        await slow.take()
    assert caught.value.cursor == "a-5-0", "the watcher has taken more since"


async def test_one_batch_of_any_size_is_given() -> None:
    own = Subscription("r", None)
    own.push(Batch(durable=[message(2)], position=2, size=10**9))
    assert await own.take() == [message(2)[1]]
    own.push(Batch(durable=[message(3)], position=3, size=10))
    assert await own.take() == [message(3)[1]], "what was taken does not count any more"


async def test_a_watcher_that_waits_is_woken_by_a_batch_an_end_and_an_error() -> None:
    own, failed = Subscription("r", None), Subscription("r", None)
    taking = asyncio.create_task(own.take())
    await asyncio.sleep(0)
    own.push(_DELTA)
    assert await taking == [delta("He")]
    taking = asyncio.create_task(own.take())
    await asyncio.sleep(0)
    own.end()
    assert await taking is None
    own.push(_DELTA)
    assert await own.take() is None, "nothing comes after the end"
    taking = asyncio.create_task(failed.take())
    await asyncio.sleep(0)
    failed.fail(ValueError("first"))
    failed.fail(ValueError("second"))
    failed.push(_DELTA)
    for waits in (taking, asyncio.create_task(failed.take())):
        with pytest.raises(ValueError, match="first"):
            await waits


async def test_what_waits_is_given_before_the_end_and_before_an_error() -> None:
    own = Subscription("r", None)
    own.push(_DELTA)
    own.end()
    assert [await own.take(), await own.take()] == [[delta("He")], None]
    failed = Subscription("r", None)
    failed.push(_DELTA)
    failed.fail(ValueError("no"))
    assert await failed.take() == [delta("He")]
    with pytest.raises(ValueError, match="no"):
        await failed.take()
