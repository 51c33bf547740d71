"""The draft of a run as its watchers know it."""

from collections.abc import Sequence

from holdfast.checkpoint.draft import Draft
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.core.events import DraftRetracted, Event, ReasoningDelta, TextDelta
from holdfast.runtime.events.subscription import Batch


class DraftView:
    """Turns successive states of a draft into deltas and retractions.

    A draft is void when its reply is recorded, when another worker owns the run, and when the run is not running.
    Of these only the first is no retraction.
    """

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._known: Draft | None = None

    def show(self) -> Batch:
        """Return the whole draft, for a new watcher."""
        known = self._known
        return Batch() if known is None else self._make_batch(self._make_deltas(known.reasoning, known.text), known)

    def update(self, draft: Draft | None, record: RunRecord, replied: int) -> Batch:
        """Return what brings the watchers from the draft that they know to `draft`.

        Args:
            draft: the present one. `None` if there is none any more, or not yet.
            replied: the journal entry of the last recorded reply.
        """
        known = self._known
        if known is not None and known.seq <= replied:
            known = self._known = None
        is_running = record.status is RunStatus.RUNNING and record.owner_alive
        if draft is not None and is_running and draft.token == record.token and draft.seq > replied:
            self._known = draft
            return self._make_batch(self._compare(known, draft), draft)
        if known is not None and (not is_running or known.token != record.token):
            self._known = None
            return self._make_batch(self._retract(known), known)
        return Batch()

    def _compare(self, known: Draft | None, draft: Draft) -> Sequence[Event]:
        if known is None:
            return self._make_deltas(draft.reasoning, draft.text)
        is_same = (known.token, known.number) == (draft.token, draft.number)
        # Redaction may change what was shown before.
        if is_same and draft.text.startswith(known.text) and draft.reasoning.startswith(known.reasoning):
            return self._make_deltas(draft.reasoning[len(known.reasoning) :], draft.text[len(known.text) :])
        return [*self._retract(known), *self._make_deltas(draft.reasoning, draft.text)]

    def _make_deltas(self, reasoning: str, text: str) -> list[Event]:
        deltas: list[Event] = []
        if reasoning:
            deltas.append(ReasoningDelta(run_id=self._run_id, text=reasoning))
        if text:
            deltas.append(TextDelta(run_id=self._run_id, text=text))
        return deltas

    def _retract(self, known: Draft) -> list[Event]:
        return [DraftRetracted(run_id=self._run_id)] if known.text or known.reasoning else []

    def _make_batch(self, events: Sequence[Event], draft: Draft) -> Batch:
        size = sum(len(event.text) for event in events if isinstance(event, TextDelta | ReasoningDelta))
        return Batch(draft=tuple(events), draft_seq=draft.seq, size=size)
