"""What the watchers of a draft are shown as it grows, ends, or is cut off."""

import msgspec

from holdfast.checkpoint.codec import Draft
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.core.run.run_events import DraftRetracted, ReasoningDelta, TextDelta
from holdfast.runtime.streams.draft_board import DraftView
from holdfast.stores.memory import MemoryStore
from holdfast.testing.store_processes.store_under_test import add_worker, create_claimed, load_record

RETRACTED = DraftRetracted(run_id="run-1")


def text(content: str) -> TextDelta:
    return TextDelta(run_id="run-1", text=content)


async def make_record() -> RunRecord:
    store = MemoryStore()
    await store.open()
    await create_claimed(store, await add_worker(store))
    return await load_record(store)


def make_draft(record: RunRecord, content: str, *, number: int = 1, seq: int = 5, reasoning: str = "") -> Draft:
    return Draft(token=record.token, seq=seq, number=number, text=content, reasoning=reasoning)


async def test_a_growing_draft_is_shown_once() -> None:
    record, view = await make_record(), DraftView("run-1")
    thinking = make_draft(record, "", reasoning="hm")
    assert view.update(thinking, record, -1).draft == (ReasoningDelta(run_id="run-1", text="hm"),)
    assert view.update(make_draft(record, "Hel", reasoning="hm"), record, -1).draft == (text("Hel"),)
    assert view.update(make_draft(record, "Hello", reasoning="hm"), record, -1).draft == (text("lo"),)
    assert view.update(make_draft(record, "Hello", reasoning="hm"), record, -1).draft == ()
    assert view.show().draft == (ReasoningDelta(run_id="run-1", text="hm"), text("Hello"))


async def test_a_draft_ends_with_its_reply() -> None:
    record, view = await make_record(), DraftView("run-1")
    draft = make_draft(record, "Hello")
    view.update(draft, record, -1)
    assert view.update(None, record, -1).draft == (), "the reply is complete and not yet recorded"
    assert view.show().draft == (text("Hello"),)
    assert view.update(draft, record, 5).draft == ()
    assert view.show().draft == (), "a new watcher is not shown what is recorded"


async def test_a_draft_that_was_cut_off_is_retracted() -> None:
    record = await make_record()
    for after in (
        msgspec.structs.replace(record, status=RunStatus.INTERRUPTED),
        msgspec.structs.replace(record, owner_alive=False),
        msgspec.structs.replace(record, token=record.token + 1),
    ):
        view = DraftView("run-1")
        view.update(make_draft(record, "Hello"), record, -1)
        assert view.update(make_draft(record, "Hello"), after, -1).draft == (RETRACTED,)
        assert view.update(make_draft(record, "Hello"), after, -1).draft == ()


async def test_the_reply_of_another_worker_replaces_a_draft_that_was_cut_off() -> None:
    record, view = await make_record(), DraftView("run-1")
    view.update(make_draft(record, "Hello"), record, -1)
    after = msgspec.structs.replace(record, token=record.token + 1)
    assert view.update(None, after, 5).draft == (), "a retraction would come after the reply"
    assert view.show().draft == ()


async def test_a_draft_that_begins_anew_or_was_redacted_later_is_shown_again() -> None:
    record, view = await make_record(), DraftView("run-1")
    view.update(make_draft(record, "Hello"), record, -1)
    assert view.update(make_draft(record, "", number=2), record, -1).draft == (RETRACTED,)
    assert view.update(make_draft(record, "Hi", number=2), record, -1).draft == (text("Hi"),)
    assert view.update(make_draft(record, "[redacted]", number=2), record, -1).draft == (RETRACTED, text("[redacted]"))


async def test_a_draft_of_a_stale_worker_is_not_shown() -> None:
    record, view = await make_record(), DraftView("run-1")
    later = msgspec.structs.replace(record, token=record.token + 1)
    assert view.update(make_draft(record, "stale"), later, -1).draft == ()
