"""What the newest runs of one agent did: its tools with their failures, its models with their cost, its approvals."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from operator import attrgetter

import msgspec

from holdfast.checkpoint.codec import Step, decode
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import RunStore
from holdfast.core.run.status import AttemptEnd
from holdfast.runtime.reading.formatting import cut_text, format_value
from holdfast.runtime.reading.run_views import read_attempts
from holdfast.runtime.reading.transcript import CallRecord, Transcript, get_loop_name

#: Runs whose journals are read at most: the newest. Entries of each: the last.
MAX_JOURNALS = 40
_MAX_ENTRIES = 1_000


class ToolRow(msgspec.Struct, kw_only=True):
    """The calls of one tool."""

    name: str
    calls: int = 0
    failed: int = 0
    last_error: str = ""
    #: The run of the last error, and when its step ended.
    run_id: str = ""
    failed_at: datetime | None = None
    took: list[timedelta] = []

    @property
    def rate(self) -> float:
        return 100 * self.failed / self.calls if self.calls else 0.0

    @property
    def slow(self) -> timedelta | None:
        """The time that 95 of 100 calls do not exceed; `None` if none was measured."""
        ordered = sorted(self.took)
        return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else None


class ModelCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one model has cost."""

    #: Empty if the replies do not name their model.
    name: str
    cost_usd: float
    share: float


class AgentReport(msgspec.Struct, frozen=True, kw_only=True):
    """Counted in the journals of the newest runs."""

    #: Runs that were read.
    runs: int
    tools: Sequence[ToolRow]
    models: Sequence[ModelCost]
    #: Approvals that were decided, those among them with other arguments, and those that were denied or expired.
    approvals: int
    edited: int
    denied: int
    #: Attempts that ended with the death of their process.
    deaths: int

    @property
    def cost_usd(self) -> float:
        return sum(model.cost_usd for model in self.models)


async def read_agent_report(store: RunStore, records: Sequence[RunRecord]) -> AgentReport:
    """Read the journals of these runs, newest first."""
    counting = _Counting()
    for record in records[:MAX_JOURNALS]:
        try:
            stored = await store.load(record.run_id, after=max(-1, record.next_seq - _MAX_ENTRIES - 1))
            await asyncio.to_thread(counting.add, record, stored.entries)
        except CheckpointError:  # removed meanwhile, or damaged: its page says which
            continue
    return counting.finish()


class _Counting:
    def __init__(self) -> None:
        self._runs = self._deaths = 0
        self._tools: dict[str, ToolRow] = {}
        self._costs: dict[str, float] = {}
        self._decisions: Counter[str] = Counter()

    def add(self, record: RunRecord, entries: Sequence[Entry]) -> None:
        """Count one run."""
        transcript = Transcript(get_loop_name(record))
        model, spent = "", None if entries and entries[0].seq else 0.0
        ended: dict[str, datetime] = {}
        took: dict[str, timedelta] = {}
        for entry in entries:
            for item in transcript.read([entry]):
                model = item.model if item.kind == "reply" else model
            if entry.kind is EntryKind.STEP:
                step = decode(entry.body, Step)
                cost = step.progress.own_usage.cost_usd
                if spent is not None and cost > spent:
                    self._costs[model] = self._costs.get(model, 0.0) + cost - spent
                spent = cost
                times = step.times.calls if step.times is not None else ()
                took |= {each.call_id: timedelta(milliseconds=each.end - each.start) for each in times}
                ended |= dict.fromkeys((each.call_id for each in times), step.at)
        for call in reversed(transcript.calls):
            self._add_call(call, record, took.get(call.call_id), ended.get(call.call_id, record.updated_at))
        self._runs += 1
        self._deaths += sum(attempt.end is AttemptEnd.DIED for attempt in read_attempts(record))

    def _add_call(self, call: CallRecord, record: RunRecord, took: timedelta | None, ended: datetime) -> None:
        row = self._tools.setdefault(call.tool, ToolRow(name=call.tool))
        row.calls += call.state in ("done", "error")
        row.failed += call.state == "error"
        if took is not None:
            row.took.append(took)
        if call.state == "error" and not row.run_id:
            row.last_error, row.run_id = cut_text(format_value(call.result), 160), record.run_id
            row.failed_at = ended
        if call.decision is not None and call.decision.kind in ("approve", "deny", "expire"):
            kind = "edit" if call.original_arguments is not None else call.decision.kind
            self._decisions[kind] += 1

    def finish(self) -> AgentReport:
        """Return what was counted: tools with the highest failure rate first, models with the highest cost first."""
        total = sum(self._costs.values())
        costs = sorted(((cost, name) for name, cost in self._costs.items()), reverse=True)
        return AgentReport(
            runs=self._runs,
            tools=sorted(self._tools.values(), key=attrgetter("rate", "calls"), reverse=True),
            models=[ModelCost(name=name, cost_usd=cost, share=100 * cost / total) for cost, name in costs],
            approvals=sum(self._decisions.values()),
            edited=self._decisions["edit"],
            denied=self._decisions["deny"] + self._decisions["expire"],
            deaths=self._deaths,
        )
