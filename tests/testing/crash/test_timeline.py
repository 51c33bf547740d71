"""The timeline of a trial finds the writes that the store lost."""

import pytest

from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.testing.crash.recording import StoredJournal, StoreFoundEvent, WriteAcknowledgedEvent
from holdfast.testing.crash.timeline import Timeline

BODIES = {
    EntryKind.BEGIN: b"{}",
    EntryKind.MESSAGE: b'{"role":"user","text":"go"}',
    EntryKind.STEP: b'{"at":"2026-01-01T00:00:00Z","progress":{"steps":1}}',
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
        # The rewrite was stored, but its writer was killed before the acknowledgement.
        (entries(3, EntryKind.BEGIN, EntryKind.MESSAGE), False),
        (entries(3, EntryKind.MESSAGE), True),
        (entries(4, EntryKind.BEGIN, EntryKind.MESSAGE), True),
    ],
    ids=["all", "more", "less", "nothing", "rewritten", "only the last", "rewritten with a gap"],
)
def test_acknowledged_entries_are_in_the_store_or_were_rewritten(found: list[Entry], lost: bool) -> None:
    journal = StoredJournal(run_id="r", status="running", reason="", entries=found)
    timeline = Timeline(
        [WriteAcknowledgedEvent(attempt=0, run_id="r", entries=SAVED), StoreFoundEvent(attempt=1, journals=[journal])]
    )
    assert bool(timeline.lost_writes) is lost
