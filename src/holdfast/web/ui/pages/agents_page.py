"""Agents: how the runs of a period went, by agent; and of one agent its tools, with their failures."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.runtime.reading.formatting import cut_text, format_value, utc_now
from holdfast.runtime.reading.run_summary import RunSummary, summarize_run
from holdfast.runtime.reading.transcript import Transcript, get_loop_name
from holdfast.web.auth import Principal, list_visible
from holdfast.web.ui.needs import count_needs
from holdfast.web.ui.site import Site, get_principal

#: The periods that a reader chooses from, and the parts of each that the plot has.
PERIODS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
_PARTS = 24
#: Runs that the page reads at most, and runs of one agent whose journals it reads.
_MAX_RUNS, _PAGE, _MAX_JOURNALS = 5_000, 500, 40
_BAD = (RunStatus.FAILED, RunStatus.PARKED)


class ToolRow(msgspec.Struct, kw_only=True):
    """The calls of one tool."""

    name: str
    calls: int = 0
    failed: int = 0
    last_error: str = ""
    #: The run of the last error.
    run_id: str = ""

    @property
    def rate(self) -> float:
        return 100 * self.failed / self.calls if self.calls else 0.0


class AgentRow(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one agent."""

    name: str
    runs: Sequence[RunSummary]
    #: By part of the period, oldest first: all runs, and those that failed or are parked.
    parts: Sequence[tuple[int, int]]

    @property
    def failed(self) -> int:
        return sum(run.status in _BAD for run in self.runs)

    @property
    def rate(self) -> float:
        """Failed and parked runs, in per cent."""
        return 100 * self.failed / len(self.runs)

    @property
    def cost_usd(self) -> float:
        return sum(run.usage.cost_usd for run in self.runs)

    @property
    def highest(self) -> int:
        return max(1, *(total for total, _ in self.parts))

    @property
    def ends(self) -> list[tuple[str, int]]:
        """How many runs have each status."""
        return Counter(run.status.value for run in self.runs).most_common()

    def find_slow(self, part: float) -> RunSummary | None:
        """Return the finished run that this part of them is faster than; `None` if none is finished."""
        runs = sorted((run for run in self.runs if run.status is RunStatus.DONE), key=_get_elapsed)
        return runs[min(len(runs) - 1, int(part * len(runs)))] if runs else None


def _get_elapsed(run: RunSummary) -> timedelta:
    return run.elapsed


async def show_agents(site: Site, request: Request) -> Response:
    """Show the agents, those with the most failures first."""
    principal, now = get_principal(request), utc_now()
    asked = request.query_params.get("period", "")
    period = asked if asked in PERIODS else "24h"
    records, is_partial = await _read(site.store, principal, now - PERIODS[period])
    agents = _group(records, PERIODS[period], now)
    opened = request.query_params.get("agent", "")
    shown = [record for record in records if record.agent_name == opened][:_MAX_JOURNALS]
    return site.render(
        request,
        "agents.html",
        section="agents",
        agents=agents,
        opened=opened,
        tools=await _read_tools(site.store, shown),
        period=period,
        periods=PERIODS,
        tool_runs=len(shown),
        is_partial=is_partial,
        pending_count=await count_needs(site.store, principal),
    )


async def _read(store: RunStore, principal: Principal, since: datetime) -> tuple[list[RunRecord], bool]:
    found: list[RunRecord] = []
    cursor: str | None = None
    while len(found) < _MAX_RUNS:
        page = await list_visible(store, principal, limit=_PAGE, cursor=cursor, since=since)
        found += page.records
        cursor = page.cursor
        if cursor is None:
            return found, False
    return found, True


def _group(records: Sequence[RunRecord], period: timedelta, now: datetime) -> list[AgentRow]:
    groups: dict[str, list[RunSummary]] = {}
    for record in records:
        groups.setdefault(record.agent_name, []).append(summarize_run(record, now))
    rows = [AgentRow(name=name, runs=runs, parts=_count_parts(runs, period, now)) for name, runs in groups.items()]
    return sorted(rows, key=lambda row: (-row.rate, -len(row.runs), row.name))


def _count_parts(runs: Sequence[RunSummary], period: timedelta, now: datetime) -> list[tuple[int, int]]:
    totals, failed = [0] * _PARTS, [0] * _PARTS
    for run in runs:
        part = max(0, min(_PARTS - 1, (run.created_at - (now - period)) // (period / _PARTS)))
        totals[part] += 1
        failed[part] += run.status in _BAD
    return list(zip(totals, failed, strict=True))


async def _read_tools(store: RunStore, records: Sequence[RunRecord]) -> list[ToolRow]:
    """Count the calls in the journals of these runs, newest first."""
    tools: dict[str, ToolRow] = {}
    for record in records:
        transcript = Transcript(get_loop_name(record))
        try:
            transcript.read((await store.load(record.run_id)).entries)
        except CheckpointError:  # removed meanwhile, or damaged: its page says which
            continue
        for call in reversed(transcript.calls):
            row = tools.setdefault(call.tool, ToolRow(name=call.tool))
            row.calls += call.state in ("done", "error")
            row.failed += call.state == "error"
            if call.state == "error" and not row.run_id:
                row.last_error, row.run_id = cut_text(format_value(call.result), 160), record.run_id
    return sorted(tools.values(), key=lambda row: (-row.rate, -row.calls, row.name))
