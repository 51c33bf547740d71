"""The checks of doctor, and the explanations of errors."""

import importlib
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Literal

import msgspec

from holdfast.checkpoint.codec import DecodedRun, decode_run
from holdfast.checkpoint.errors import CheckpointError, RunNotFound, StoreError
from holdfast.checkpoint.record import TERMINAL_STATUSES, RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import RunStore, SupportsHealthCheck, iter_runs
from holdfast.cli.output import format_error
from holdfast.core.agents.agent import Agent, AgentSource
from holdfast.core.agents.calls import Effect
from holdfast.core.execution.native_loop import NATIVE_LOOP, get_loop
from holdfast.core.execution.pipeline import build_agent, describe_unknown_phases
from holdfast.core.loop import PendingCall
from holdfast.root_error import HoldfastError
from holdfast.runtime.reading import formatting
from holdfast.runtime.reading.reentries import DEFAULT_LIMIT, reenter_runs
from holdfast.runtime.reading.transcript import Transcript, get_loop_name


class AnyMessageCodec:
    """A codec for the messages of any loop, as plain JSON."""

    def encode(self, message: object) -> bytes:
        return msgspec.json.encode(message)

    def decode(self, body: bytes) -> object:
        return msgspec.json.decode(body)


ANY_MESSAGE_CODEC = AnyMessageCodec()


class PreflightResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a preflight check of one run."""

    #: Why the run could not be resumed; empty if it could.
    problem: str = ""
    #: Calls without a recorded result that are not safe to repeat.
    in_doubt: list[str] = []


async def run_preflight(stored: StoredRun, source: AgentSource) -> PreflightResult:
    """Load the run as a worker would and compare it with its agent.

    Raises:
        CheckpointError: the run cannot be loaded.
        Exception: the agent's source raised it.
    """
    checkpoint = decode_run(stored, get_loop(source).codec)
    agent = await build_agent(source, checkpoint.info)
    if unknown := describe_unknown_phases(agent, checkpoint.state):
        return PreflightResult(problem=f"it would stay interrupted: it has {unknown}")
    pending = _list_pending_calls(agent, checkpoint)
    phase = next(iter(agent.phases[len(checkpoint.state.phases) :]), None)
    if get_loop(agent if phase is None or phase.agent is None else phase.agent) is not NATIVE_LOOP:
        return PreflightResult(in_doubt=[f"{call.tool} {call.call_id}" for call in pending])
    profile = agent.profile(phase)
    tools = profile.tools
    missing = sorted({call.tool for call in pending} - set(tools))
    in_doubt = [
        f"{call.tool} {call.call_id}"
        for call in pending
        if call.tool in tools and tools[call.tool].effect is Effect.ONCE
    ]
    problem = ""
    if missing and profile.missing_tools != "report":
        status = "stay interrupted" if profile.missing_tools == "defer" else "be parked"
        problem = f"it would {status}: it calls {missing}, which the agent lacks"
    return PreflightResult(problem=problem, in_doubt=in_doubt)


def _list_pending_calls(agent: Agent, checkpoint: DecodedRun) -> list[PendingCall]:
    state = checkpoint.state
    return [call for call in get_loop(agent).pending_calls(state.history) if call.call_id not in state.results]


Level = Literal["ok", "warning", "wrong"]

#: Runs that have not begun, or have ended. If there are many, the journals of some are read.
_SAMPLED_STATUSES = frozenset({RunStatus.QUEUED, *TERMINAL_STATUSES})
#: How many of them.
SAMPLE_SIZE = 2000


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check."""

    check: str
    level: Level
    detail: str
    runs: list[str] = []
    #: Why each of these runs is listed, by its id.
    reasons: dict[str, str] = {}


class ReentryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which workflow runs are re-entered."""

    agent: str | None = None
    limit: int = DEFAULT_LIMIT


class Doctor:
    """Checks a store, the records of all runs, and the journals of those in progress and of a sample of the others."""

    def __init__(
        self,
        store: RunStore,
        agents: Mapping[str, AgentSource] | None,
        *,
        sample: int | None = SAMPLE_SIZE,
        reentry: ReentryOptions | None = None,
    ) -> None:
        """Check `store`; with `agents`, also whether these can resume its runs.

        Args:
            sample: how many journals of queued and ended runs are read at most. `None`: all.
            reentry: also call the workflows of runs up to their first new step.
        """
        self._store, self._agents, self._sample, self._reentry = store, agents, sample, reentry
        #: The journal of every n-th queued or ended run is read.
        self._stride = 1
        self._sampled = 0
        self._statuses: Counter[str] = Counter()
        self._size = 0
        self._owners: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        #: Run ids, with the reason.
        self._damaged: dict[str, str] = {}
        self._missing_agents: dict[str, str] = {}
        self._not_resumable: dict[str, str] = {}
        self._parked: dict[str, str] = {}
        self._in_doubt: dict[str, str] = {}

    async def run(self) -> list[Finding]:
        """Run all checks."""
        findings = await self._check_store()
        try:
            if self._sample is not None:
                counts = (await self._store.read_fleet()).counts
                total = sum(each.count for each in counts if each.status in _SAMPLED_STATUSES)
                self._stride = max(1, -(-total // self._sample))
            async for record in iter_runs(self._store):
                self._check_record(record)
                if self._is_journal_wanted(record):
                    await self._check_journal(record)
            reentry = await self._check_reentry()
        except StoreError as exc:
            return [*findings, Finding(check="runs", level="wrong", detail=f"the runs cannot be listed: {exc}")]
        return [*findings, *self._make_run_findings(), *self._make_code_findings(), *reentry]

    async def _check_reentry(self) -> list[Finding]:
        if self._reentry is None or self._agents is None:
            return []
        options = self._reentry
        found = await reenter_runs(self._store, self._agents, agent=options.agent, limit=options.limit)
        wrong: dict[str, str] = {}
        harmless: dict[str, str] = {}
        for run in found.runs:
            for each in run.mismatches:
                reasons = harmless if each.harmless else wrong
                reasons[run.run_id] = "; ".join(filter(None, (reasons.get(run.run_id), each.detail)))
        number = formatting.format_number(len(found.runs))
        findings = [_make_finding("re-entry", "wrong", wrong, f"{number} workflow runs fit this code")]
        if harmless:
            findings.append(_make_finding("re-entry of pure calls", "warning", harmless, ""))
        if found.truncated:
            detail = f"the oldest {number} workflow runs were re-entered: --limit sets another number"
            findings.append(Finding(check="re-entry limit", level="warning", detail=detail))
        return findings

    def _describe_sample(self) -> str:
        if self._stride == 1:
            return ""
        read, ended = map(formatting.format_number, (self._sampled // self._stride, self._sampled))
        return f" (the journals of {read} of {ended} queued and ended runs; --all reads all)"

    async def _check_store(self) -> list[Finding]:
        if not isinstance(self._store, SupportsHealthCheck):
            return []
        health = await self._store.check_health()
        is_newest = health.version == health.known_version
        newest = "the newest" if is_newest else f"this code knows {health.known_version}"
        free = f", {formatting.format_size(health.free)} of it free" if health.free else ""
        findings = [
            Finding(check="schema", level="ok", detail=f"version {health.version}, {newest}"),
            Finding(check="size", level="ok", detail=f"{formatting.format_size(health.size)}{free}"),
            Finding(
                check="integrity",
                level="wrong" if health.problems else "ok",
                detail="; ".join(health.problems) or "no damage found",
            ),
        ]
        if health.warnings:
            findings.append(Finding(check="settings", level="warning", detail="; ".join(health.warnings)))
        return findings

    def _check_record(self, record: RunRecord) -> None:
        self._statuses[record.current_status] += 1
        self._size += record.size
        if record.status is RunStatus.RUNNING and record.owner is not None:
            self._owners[record.owner_alive][record.owner] += 1
        if record.status is RunStatus.PARKED:
            self._parked[record.run_id] = record.reason
        # The agent of a child run is known only to the tool that starts it.
        needs_agent = not record.is_terminal and record.parent_run_id is None
        if self._agents is not None and needs_agent and record.agent_name not in self._agents:
            known = ", ".join(sorted(self._agents))
            self._missing_agents[record.run_id] = f"no agent {record.agent_name} among {known}"

    def _is_journal_wanted(self, record: RunRecord) -> bool:
        if record.status not in _SAMPLED_STATUSES:
            return True
        self._sampled += 1
        return self._sampled % self._stride == 0

    async def _check_journal(self, record: RunRecord) -> None:
        try:
            stored = await self._store.load(record.run_id)
            decode_run(stored, ANY_MESSAGE_CODEC)
        except RunNotFound:
            return  # it finished and was removed meanwhile
        except CheckpointError as exc:
            self._damaged[record.run_id] = format_error(exc)
            return
        if not record.is_terminal:
            await self._check_resumable(stored)

    async def _check_resumable(self, stored: StoredRun) -> None:
        """Check a run that is not terminal."""
        record = stored.record
        source = (self._agents or {}).get(record.agent_name)
        if source is not None:
            preflight = await _try_preflight(stored, source)
        else:
            transcript = Transcript(get_loop_name(record))
            transcript.read(stored.entries)
            transcript.close(record)
            in_doubt = [call for call in transcript.unanswered if call.state == "in doubt"]
            preflight = PreflightResult(in_doubt=[f"{call.tool} {call.call_id}" for call in in_doubt])
        if preflight.problem:
            self._not_resumable[record.run_id] = preflight.problem
        if preflight.in_doubt and (record.is_interrupted or record.status is RunStatus.PARKED):
            self._in_doubt[record.run_id] = ", ".join(preflight.in_doubt)

    # -- findings -----------------------------------------------------------------------------------------------

    def _make_run_findings(self) -> list[Finding]:
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(self._statuses.items())) or "none"
        alive, dead = self._owners[True], self._owners[False]
        findings = [
            Finding(check="runs", level="ok", detail=f"{statuses}; {formatting.format_size(self._size)} of journals"),
            Finding(
                check="workers",
                level="warning" if dead else "ok",
                detail=f"{len(alive)} alive with {alive.total()} runs, {len(dead)} dead with {dead.total()} runs",
            ),
            _make_finding("damage", "wrong", self._damaged, f"every run can be read{self._describe_sample()}"),
        ]
        if self._parked:
            findings.append(_make_finding("parked", "warning", self._parked, ""))
        return [*findings, _make_finding("in doubt", "warning", self._in_doubt, "no call is in doubt")]

    def _make_code_findings(self) -> list[Finding]:
        if self._agents is None:
            return []
        return [
            _make_finding("agents", "wrong", self._missing_agents, "every run has an agent"),
            _make_finding("preflight", "wrong", self._not_resumable, "this code can resume every run"),
        ]


async def _try_preflight(stored: StoredRun, source: AgentSource) -> PreflightResult:
    try:
        return await run_preflight(stored, source)
    except CheckpointError as exc:
        return PreflightResult(problem=format_error(exc))
    except Exception as exc:  # the source is user code
        return PreflightResult(problem=f"its agent cannot be built: {format_error(exc)}")


def _make_finding(check: str, level: Level, runs: Mapping[str, str], ok_detail: str) -> Finding:
    if not runs:
        return Finding(check=check, level="ok", detail=ok_detail)
    first = "; ".join(f"{run_id}: {reason}" for run_id, reason in list(runs.items())[:5])
    more = f"; and {len(runs) - 5} more" if len(runs) > 5 else ""
    return Finding(check=check, level=level, detail=first + more, runs=list(runs), reasons=dict(runs))


#: The modules that define errors. Those of an extra that is not installed are left out.
ERROR_MODULES = (
    "holdfast.batteries.audit.audit",
    "holdfast.batteries.budget.budget",
    "holdfast.batteries.critic.watchdog",
    "holdfast.batteries.definitions.versions",
    "holdfast.batteries.rate_limits.windows",
    "holdfast.batteries.persona",
    "holdfast.batteries.schedule.jobs",
    "holdfast.batteries.skill",
    "holdfast.checkpoint.errors",
    "holdfast.client.errors",
    "holdfast.cli.output",
    "holdfast.cli.compare.recipe",
    "holdfast.core.errors",
    "holdfast.core.run.run_events",
    "holdfast.core.run.turns",
    "holdfast.core.run.mail",
    "holdfast.core.run.waiting",
    "holdfast.core.workflow.steps.step_errors",
    "holdfast.db.tables",
    "holdfast.root_error",
    "holdfast.fanout.errors",
    "holdfast.runtime.operations.mailing",
    "holdfast.stores.postgres.write_requests",
    "holdfast.testing.crash.checks",
    "holdfast.web.api.operation",
    "holdfast.web.api.operation",
    "holdfast.web.errors",
    "holdfast.web.ui.application",
)


def load_explanations() -> dict[str, str]:
    """Return the explanation of each error, by the name of its class, sorted."""
    for module in ERROR_MODULES:
        with suppress(ModuleNotFoundError):
            importlib.import_module(module)
    # Only those of the list: other modules may be loaded or not.
    errors = [kind for kind in _walk(HoldfastError) if kind.__module__ in ERROR_MODULES]
    return {
        kind.__name__: inspect.cleandoc(kind.__doc__ or "") for kind in sorted(errors, key=lambda kind: kind.__name__)
    }


def _walk(kind: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _walk(subclass)
