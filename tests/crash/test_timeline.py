"""What the notes of a trial say about the store."""

import pytest

from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.testing.crash.events import StoredJournal, StoreFoundEvent, WriteAcknowledgedEvent
from holdfast.testing.crash.timeline import Timeline

BODIES = {
    EntryKind.BEGIN: b"{}",
    EntryKind.MESSAGE: b'{"role":"user","text":"go"}',
    EntryKind.STEP: b'{"at":"2026-01-01T00:00:00Z","progress":{"iteration":1}}',
}


def entries(first: int, *kinds: EntryKind) -> list[Entry]:
    return [Entry(seq=seq, kind=kind, body=BODIES[kind]) for seq, kind in enumerate(kinds, first)]


SAVED = entries(0, EntryKind.BEGIN, EntryKind.MESSAGE, EntryKind.STEP)


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        (SAVED, False),
        ([*SAVED, *entries(3, EntryKind.MESSAGE)], False),
        (SAVED[:-1], True),
        ([], True),
        # A rewrite of the history that was written, and whose writer did not live to hear of it.
        (entries(3, EntryKind.BEGIN, EntryKind.MESSAGE), False),
        (entries(3, EntryKind.MESSAGE), True),
        (entries(4, EntryKind.BEGIN, EntryKind.MESSAGE), True),
    ],
    ids=["all", "more", "less", "nothing", "rewritten", "only the last", "rewritten from nowhere"],
)
def test_what_was_acknowledged_is_there_or_was_rewritten(found: list[Entry], lost: bool) -> None:
    journal = StoredJournal(run_id="r", status="running", reason="", entries=found)
    story = Timeline(
        [WriteAcknowledgedEvent(attempt=0, run_id="r", entries=SAVED), StoreFoundEvent(attempt=1, journals=[journal])]
    )
    assert bool(story.lost_writes) is lost
