"""The queue of one watcher: no event twice, no unbounded waiting."""

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
from holdfast.runtime.streams import subscription as module
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


async def _take_all(own: Subscription):  # type: ignore[no-untyped-def]
    while (events := await own.take()) is not None:
        yield events


@pytest.mark.parametrize("bound", ["MAX_WAITING_BYTES", "MAX_WAITING_BATCHES"])
async def test_a_slow_watcher_is_disconnected_with_its_cursor(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, bound, 20)
    own = Subscription("r", "a-1-0")
    for seq in range(2, 2 + 21):
        own.push(Batch(durable=[message(seq)], position=seq, size=1))
    own.push(Batch(durable=[message(99)], position=99, size=1))
    with pytest.raises(ReaderTooSlow) as slow:
        await own.take()
    assert slow.value.cursor == "a-1-0"


async def test_one_batch_of_any_size_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 20)
    own = Subscription("r", None)
    own.push(Batch(durable=[message(2)], position=2, size=10**9))
    assert await own.take() == [message(2)[1]]
    own.push(Batch(durable=[message(3)], position=3, size=10))
    assert await own.take() == [message(3)[1]], "what was taken does not count any more"
