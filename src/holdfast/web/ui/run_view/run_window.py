"""Reads parts of a journal: the window that a page shows, one entry, or what contains a text."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.codec import Step, decode
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, StoredRun
from holdfast.checkpoint.store import RunStore
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import WORKFLOW_LOOP_NAME
from holdfast.core.run.mail import Mail
from holdfast.runtime.reading.formatting import cut_text, format_value
from holdfast.runtime.reading.transcript import Transcript, get_loop_name
from holdfast.web.ui.content import list_images
from holdfast.web.ui.run_view.run_steps import Content, Steps, StepView, build_steps, find_content

#: Entries of a window: some 65 steps with one call each.
WINDOW = 200
#: Entries of the page that opens at the end of a run: some 30 steps. Of a workflow: some 130 calls.
_END_WINDOW, _CALL_WINDOW = 90, 400
_MAX_HITS = 50
_SNIPPET = 160


class TranscriptWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a transcript, and where its neighbours are."""

    record: RunRecord
    steps: Steps
    #: Entries before this number are earlier. `None`: the window begins with the journal.
    earlier: int | None
    #: The window after this one ends before this number. `None`: the window reaches to the end.
    later: int | None = None
    #: The topics of mail that the run has not read: a call that waits for one of them is answered.
    answered: frozenset[str] = frozenset()
    #: The mail that the run has not read.
    mail: Sequence[Mail] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal if nothing of the run has changed that its page shows."""
        record = self.record
        return record.next_seq, record.status, record.updated_at, record.owner_alive, record.cancel_requested


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """A place that contains a text."""

    step: int
    kind: str
    snippet: str


async def read_window(
    store: RunStore,
    record: RunRecord,
    *,
    before: int | None = None,
    step: int | None = None,
    with_traces: bool = False,
) -> TranscriptWindow:
    """Read the last window, the one that ends before an entry, or the one around a step.

    Args:
        with_traces: for operators, the tracebacks of failed calls.
    """
    if step is not None:
        entries = (await store.load(record.run_id)).entries
        position = await asyncio.to_thread(find_step, entries, step)
        before = entries[min(len(entries), position + WINDOW // 2) - 1].seq + 1 if entries else None
    end = record.next_seq if before is None else max(1, min(before, record.next_seq))
    is_workflow = get_loop_name(record) == WORKFLOW_LOOP_NAME
    size = _CALL_WINDOW if is_workflow else _END_WINDOW if before is None else WINDOW
    stored = await store.load(record.run_id, after=max(-1, end - size - 1))
    # A run that has grown since the record was read ends where the journal ends.
    entries = [entry for entry in stored.entries if before is None or entry.seq < end]
    is_end = len(entries) == len(stored.entries)
    finished = decode(stored.record.progress, Progress).steps
    steps = build_steps(entries, stored.record, is_end=is_end, finished_steps=finished, with_traces=with_traces)
    has_earlier = bool(entries) and entries[0].kind is not EntryKind.BEGIN and bool(steps.steps)
    return TranscriptWindow(
        record=stored.record,
        steps=steps,
        earlier=steps.steps[0].first_seq if has_earlier else None,
        later=None if is_end else end + size - size // 10,
        answered=frozenset(mail.topic for mail in stored.mail),
        mail=stored.mail,
    )


async def read_outcome(store: RunStore, window: TranscriptWindow) -> Content | None:
    """Return the result or the error of the run, also if the window does not reach to its end."""
    record = window.record
    if window.later is None or not record.is_terminal:
        return window.steps.outcome
    stored = await store.load(record.run_id, after=max(-1, record.next_seq - 3))
    return build_steps(stored.entries, record, is_end=True, finished_steps=0).outcome


async def read_tail(store: RunStore, run_id: str, last_step_seq: int, *, with_traces: bool = False) -> TranscriptWindow:
    """Read the record, and what follows the finished step whose last entry has this number."""
    stored = await store.load(run_id, after=max(-1, last_step_seq - 1))
    finished = decode(stored.record.progress, Progress).steps
    steps = build_steps(stored.entries, stored.record, is_end=True, finished_steps=finished, with_traces=with_traces)
    answered = frozenset(mail.topic for mail in stored.mail)
    return TranscriptWindow(record=stored.record, steps=steps, earlier=last_step_seq, answered=answered)


async def read_step(store: RunStore, record: RunRecord, number: int) -> StepView:
    """Return one finished step with whole texts.

    Raises:
        RunNotFound: the journal has no such step.
    """
    entries = (await store.load(record.run_id)).entries
    step = await asyncio.to_thread(_build_step, entries, record, number)
    if step is None:
        raise RunNotFound(record.run_id)
    return step


def _build_step(entries: Sequence[Entry], record: RunRecord, number: int) -> StepView | None:
    end = find_step(entries, number)
    start = max((at for at in range(end) if entries[at].kind is EntryKind.STEP), default=0)
    steps = build_steps(entries[start : end + 1], record, is_end=False, finished_steps=0, fold=2**62)
    return next((step for step in steps.steps if step.finished and step.number == number), None)


async def read_image(store: RunStore, run_id: str, seq: int, number: int) -> tuple[str, bytes]:
    """Return the media type and the bytes of one picture of the journal.

    Raises:
        RunNotFound: the run has no such picture.
    """
    _, entry = await _read_entry(store, run_id, seq)
    images = list_images(entry)
    content = images[number].read() if 0 <= number < len(images) else b""
    if not content:
        raise RunNotFound(run_id)
    return images[number].media_type, content


async def read_content(store: RunStore, run_id: str, seq: int, number: int) -> str:
    """Return one whole text of the journal.

    Raises:
        RunNotFound: the run has no such text.
    """
    stored, entry = await _read_entry(store, run_id, seq)
    content = find_content(get_loop_name(stored.record), entry, number)
    if content is None:
        raise RunNotFound(run_id)
    return content


async def _read_entry(store: RunStore, run_id: str, seq: int) -> tuple[StoredRun, Entry]:
    stored = await store.load(run_id, after=seq - 1)
    for entry in stored.entries[:1]:
        if entry.seq == seq:
            return stored, entry
    raise RunNotFound(run_id)


async def search(store: RunStore, run_id: str, text: str) -> list[Hit]:
    """Return the first places in the journal that contain a text, whatever its case."""
    stored = await store.load(run_id)
    return await asyncio.to_thread(_search, stored, text.lower())


def _search(stored: StoredRun, text: str) -> list[Hit]:
    hits: list[Hit] = []
    loop, entries = get_loop_name(stored.record), stored.entries
    # JSON escapes some characters: look for the longest word, then at the decoded text.
    word = max(text.split() or [""], key=len).encode()
    for position, entry in enumerate(entries):
        if word not in entry.body.lower() and word.isascii():
            continue
        for item in Transcript(loop).read([entry]):
            shown = " ".join((item.text, format_value(item.content) if item.content is not None else ""))
            shown = " ".join((shown, *(f"{call.tool} {format_value(call.arguments)}" for call in item.calls)))
            at = shown.lower().find(text)
            if at >= 0 and item.kind not in ("step", "begin"):
                snippet = cut_text(shown[max(0, at - _SNIPPET // 3) :], _SNIPPET)
                hits.append(Hit(step=_get_step(entries, position), kind=item.kind, snippet=snippet))
        if len(hits) >= _MAX_HITS:
            break
    return hits


def _get_step(entries: Sequence[Entry], position: int) -> int:
    """Return the step of an entry: that of the next end of a step, or the one after the last."""
    for entry in entries[position:]:
        if entry.kind is EntryKind.STEP:
            return read_step_number(entry)
    last = next((entry for entry in reversed(entries) if entry.kind is EntryKind.STEP), None)
    return read_step_number(last) + 1 if last is not None else 1


def find_step(entries: Sequence[Entry], step: int) -> int:
    """Return the position of the end of a step, or of the last entry."""
    ends = [position for position, entry in enumerate(entries) if entry.kind is EntryKind.STEP]
    found = bisect_left(ends, step, key=lambda position: read_step_number(entries[position]))
    return ends[found] if found < len(ends) else max(0, len(entries) - 1)


def read_step_number(entry: Entry) -> int:
    """Return the number of the step that an entry ends."""
    return decode(entry.body, Step).progress.steps


#: Digits of a number in a URL or a form: more than a journal has entries.
_MAX_DIGITS = 15


def read_number(given: str | None, default: int | None = None) -> Any:
    """Return the number in a URL or a form.

    Raises:
        DefinitionError: it is none.
    """
    if given is None:
        return default
    if not given.removeprefix("-").isdecimal() or len(given) > _MAX_DIGITS:
        raise DefinitionError(f"{given!r:.40} is not a number of at most {_MAX_DIGITS} digits")
    return int(given)
