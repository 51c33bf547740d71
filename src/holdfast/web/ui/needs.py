"""All that needs a person: calls in doubt, approvals, questions, parked runs. The badge counts it."""

import asyncio
import re
from collections.abc import Sequence

import msgspec

from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import RecordDecodeError, RunNotFound
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import END, RunStore, get_record
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.reading.formatting import cut_text
from holdfast.runtime.reading.transcript import read_record_waits
from holdfast.web.auth import Principal, list_visible

#: Runs of each status that are read: the newest.
_LIMIT = 500
_REASON_LENGTH = 200
#: What differs between runs that are parked for the same reason: ids and numbers.
_VARYING = re.compile(r"\b[0-9a-f]{8,}\b|\d+")


class ParkedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Parked runs with the same reason, oldest first."""

    reason: str
    records: Sequence[RunRecord]

    @property
    def run_ids(self) -> list[str]:
        return [record.run_id for record in self.records]


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What needs a person at one moment, in the order of danger; within a group oldest first."""

    doubts: Sequence[RunRecord]
    approvals: Sequence[tuple[RunRecord, WaitingCall]]
    questions: Sequence[tuple[RunRecord, WaitingCall]]
    parked: Sequence[ParkedGroup]
    #: There is more than was read.
    has_more: bool = False

    @property
    def parked_count(self) -> int:
        return sum(len(group.records) for group in self.parked)

    @property
    def total(self) -> int:
        return len(self.doubts) + len(self.approvals) + len(self.questions) + self.parked_count

    @property
    def label(self) -> str:
        """The number on the badge; empty for zero."""
        return f"{self.total:,}{'+' if self.has_more else ''}" if self.total else ""

    @property
    def key(self) -> list[tuple[str, str]]:
        """Equal if the inbox has not changed."""
        calls = [(call.run_id, call.id) for _, call in (*self.approvals, *self.questions)]
        parked = [record for group in self.parked for record in group.records]
        return [*calls, *((record.run_id, record.reason) for record in (*self.doubts, *parked))]


async def read_needs(store: RunStore, principal: Principal) -> Needs:
    """Read what needs a person, as far as it is visible to the principal."""
    statuses = (RunStatus.WAITING, RunStatus.PARKED, RunStatus.RUNNING)
    reads = (list_visible(store, principal, limit=_LIMIT, status=status) for status in statuses)
    waiting, parked, running = await asyncio.gather(*reads)
    calls = [(record, call) for record in waiting.records for call in read_record_waits(record) if call.needs_answer]
    for record in running.records:
        calls += [(record, call) for call in await _list_unanswered(store, record)]
    calls.sort(key=lambda pair: pair[1].asked_at)
    in_doubt = [record for record in parked.records if _has_doubts(record)]
    return Needs(
        doubts=in_doubt[::-1],
        approvals=[pair for pair in calls if pair[1].kind == "approval"],
        questions=[pair for pair in calls if pair[1].kind != "approval"],
        parked=_group([record for record in parked.records[::-1] if record not in in_doubt]),
        has_more=waiting.cursor is not None or parked.cursor is not None,
    )


async def count_needs(store: RunStore, principal: Principal) -> str:
    """Return the number for the badge of the inbox; empty for zero."""
    return (await read_needs(store, principal)).label


async def _list_unanswered(store: RunStore, record: RunRecord) -> Sequence[WaitingCall]:
    """Return the calls of a running run that wait for a person: other calls of its step are still executed."""
    if not any(call.needs_answer for call in read_record_waits(record)):
        return ()
    try:
        answered = {mail.topic for mail in (await store.load(record.run_id, after=END)).mail}
        record = await get_record(store, record.run_id)
    except RunNotFound:
        return ()
    return [call for call in read_record_waits(record) if call.needs_answer and call.topic not in answered]


def _has_doubts(record: RunRecord) -> bool:
    try:
        return bool(decode(record.progress, Progress).calls.in_doubt)
    except RecordDecodeError:
        return False


def _group(records: Sequence[RunRecord]) -> list[ParkedGroup]:
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(_VARYING.sub("#", record.reason.replace(record.run_id, "#")), []).append(record)
    found = [
        ParkedGroup(reason=cut_text(records[0].reason, _REASON_LENGTH) or "without a reason", records=records)
        for records in groups.values()
    ]
    return sorted(found, key=lambda group: -len(group.records))
