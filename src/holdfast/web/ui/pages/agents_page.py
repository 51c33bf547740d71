"""Agents: how the runs of a period went, by agent; and of one agent its tools, models and approvals."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from difflib import get_close_matches
from operator import attrgetter

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import count_live_workers
from holdfast.core.run.info import WORKFLOW_LOOP_NAME
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import RunSummary, summarize_run
from holdfast.runtime.reading.transcript import get_loop_name
from holdfast.web.auth import Principal, list_visible
from holdfast.web.ui.needs import count_needs
from holdfast.web.ui.pages.agent_report import read_agent_report
from holdfast.web.ui.site import Site, get_principal

#: The periods that a reader chooses from, and the parts of each that the plot has.
PERIODS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7)}
_PARTS = 24
#: Runs that the page reads at most.
_MAX_RUNS, _PAGE = 5_000, 500
_BAD = (RunStatus.FAILED, RunStatus.PARKED)
#: The size of a plot, and the room above its highest point.
_WIDTH, _HEIGHT, _ROOM = 100.0, 26.0, 2.0


class AgentRun(msgspec.Struct, frozen=True):
    """A run, and what it cost without its child runs."""

    summary: RunSummary
    cost_usd: float
    #: The part of the period in which it began, from 0.
    part: int


class RunGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs of the period."""

    runs: Sequence[AgentRun]

    @property
    def failed(self) -> int:
        return sum(run.summary.status in _BAD for run in self.runs)

    @property
    def rate(self) -> float:
        """Failed and parked runs, in per cent."""
        return 100 * self.failed / len(self.runs) if self.runs else 0.0

    @property
    def cost_usd(self) -> float:
        return sum(run.cost_usd for run in self.runs)

    @property
    def ends(self) -> list[tuple[str, int]]:
        """How many runs have each status."""
        return Counter(run.summary.status.value for run in self.runs).most_common()

    def find_slow(self, part: float) -> RunSummary | None:
        """Return the finished run that this part of them is faster than; `None` if none is finished."""
        runs = sorted((run.summary for run in self.runs if run.summary.status is RunStatus.DONE), key=_get_elapsed)
        return runs[min(len(runs) - 1, int(part * len(runs)))] if runs else None

    @property
    def p95(self) -> float:
        """The seconds that 95 of 100 finished runs do not exceed; zero if none is finished."""
        slow = self.find_slow(0.95)
        return 0.0 if slow is None else slow.elapsed.total_seconds()

    @property
    def count(self) -> int:
        return len(self.runs)

    def plot(self, name: str) -> "Plot":
        """Return `count`, `failed`, `cost_usd` or `p95` over the period."""
        parts: list[list[AgentRun]] = [[] for _ in range(_PARTS)]
        for run in self.runs:
            parts[run.part].append(run)
        return Plot(values=[getattr(RunGroup(runs=part), name) for part in parts])


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    """A line over the period, and bars below it."""

    values: Sequence[float]

    @property
    def line(self) -> str:
        """The path of the line. It has nothing but numbers."""
        return "M" + "L".join(f"{x:.1f} {self._get_height(value):.1f}" for x, value in self._points)

    @property
    def area(self) -> str:
        """The path of what is below the line."""
        return f"{self.line}L{_WIDTH:.0f} {_HEIGHT:.0f}L0 {_HEIGHT:.0f}Z"

    def list_bars(self, highest: float) -> list[tuple[float, float]]:
        """Return the place and the height of a bar for each value that is not zero, on the scale of another plot."""
        scale = (_HEIGHT - _ROOM) / max(highest, 1)
        return [(round(x - 1.5, 1), round(max(3.0, value * scale), 1)) for x, value in self._points if value]

    @property
    def highest(self) -> float:
        return max(self.values, default=0.0)

    @property
    def _points(self) -> list[tuple[float, float]]:
        step = _WIDTH / max(1, len(self.values) - 1)
        return [(place * step, value) for place, value in enumerate(self.values)]

    def _get_height(self, value: float) -> float:
        return _HEIGHT - _ROOM - (_HEIGHT - 2 * _ROOM) * (value / self.highest if self.highest else 0.0)


class AgentRow(RunGroup, frozen=True, kw_only=True):
    """The runs of one agent."""

    name: str
    #: What kind of runs they are, in a few words; empty for ordinary ones.
    about: str
    #: Live workers that take its runs; `None` for a reader who does not see all workers.
    workers: int | None
    #: The agent that was meant, if no live worker knows this one.
    meant: str = ""


def _get_elapsed(run: RunSummary) -> timedelta:
    return run.elapsed


#: How the rows can be sorted: by these numbers, highest first.
_SORTS = {"errors": "rate", "runs": "count", "p95": "p95", "cost": "cost_usd"}


async def show_agents(site: Site, request: Request) -> Response:
    """Show the agents, those with the most failures first."""
    principal, now, params = get_principal(request), utc_now(), request.query_params
    period = params.get("period", "") if params.get("period", "") in PERIODS else "24h"
    sort = params.get("sort", "") if params.get("sort", "") in _SORTS else "errors"
    records, is_partial = await _read(site.store, principal, now - PERIODS[period])
    live = [each for each in await site.store.list_workers() if each.alive] if principal.sees_all else None
    known = None if live is None else count_live_workers(live)
    agents = _group(records, PERIODS[period], now, known, sort)
    opened = params.get("agent", "")
    shown = [record for record in records if record.agent_name == opened]
    return site.render(
        request,
        "agents.html",
        section="agents",
        agents=agents,
        everything=RunGroup(runs=[run for row in agents for run in row.runs]),
        opened=opened,
        details=await read_agent_report(site.store, shown) if shown else None,
        period=period,
        periods=PERIODS,
        sort=sort,
        live_workers=None if live is None or known is None else sum(bool(each.worker.agents) for each in live),
        known_agents=None if known is None else len(known),
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


def _group(
    records: Sequence[RunRecord], period: timedelta, now: datetime, known: Counter[str] | None, sort: str
) -> list[AgentRow]:
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(record.agent_name, []).append(record)
    rows: list[AgentRow] = []
    for name, group in groups.items():
        runs = [_make_run(record, period, now) for record in group]
        workers = None if known is None else known[name]
        near = get_close_matches(name, known, n=1) if known and not workers else []
        meant = near[0] if near else ""
        rows.append(AgentRow(name=name, runs=runs, about=_describe(group, runs), workers=workers, meant=meant))
    rows.sort(key=attrgetter("name"))
    return sorted(rows, key=attrgetter(_SORTS[sort], "count"), reverse=True)


def _make_run(record: RunRecord, period: timedelta, now: datetime) -> AgentRun:
    summary, cost = summarize_run(record, now), 0.0
    with suppress(RecordDecodeError):  # only a newer holdfast can decode it
        cost = decode(record.progress, Progress).own_usage.cost_usd
    part = (summary.created_at - (now - period)) // (period / _PARTS)
    return AgentRun(summary, cost, max(0, min(_PARTS - 1, part)))


def _describe(records: Sequence[RunRecord], runs: Sequence[AgentRun]) -> str:
    if get_loop_name(records[0]) == WORKFLOW_LOOP_NAME:
        return "workflow"
    if runs[0].summary.conversation:
        return "conversations"
    children = sum(record.parent_run_id is not None for record in records)
    return "mostly child runs" if 2 * children > len(records) else ""
