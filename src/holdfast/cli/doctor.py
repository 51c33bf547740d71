"""Whether a stored run would go on under the code at hand. Nothing is claimed, written or called.

What `holdfast doctor` looks at, and what it finds.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.checkpoint.codec import Checkpoint, read_checkpoint
from holdfast.checkpoint.errors import CheckpointError, RunNotFound, StoreError
from holdfast.checkpoint.record import RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import CheckpointStore, SupportsHealthCheck
from holdfast.cli import formatting
from holdfast.cli.errors import format_error
from holdfast.cli.listing import display_status
from holdfast.cli.transcript import Transcript
from holdfast.core.agent import Agent, AgentSource
from holdfast.core.effects import Effect
from holdfast.core.execution.lifecycle import describe_unknown_phases
from holdfast.core.execution.loop import PendingCall
from holdfast.core.execution.native import get_loop


class AnyMessageCodec:
    """A codec for messages of whatever loop: they are JSON, and what they mean does not matter here."""

    def encode(self, message: object) -> bytes:
        return msgspec.json.encode(message)

    def decode(self, body: bytes) -> object:
        return msgspec.json.decode(body)


ANY_MESSAGE_CODEC = AnyMessageCodec()


class PreflightResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run before it goes on."""

    #: Why it would not; empty if it would.
    problem: str = ""
    #: Calls without a recorded result that must not be made again just so.
    in_doubt: list[str] = []


async def run_preflight(stored: StoredRun, source: AgentSource) -> PreflightResult:
    """Load the run as recovery would and compare it with its agent.

    Raises:
        CheckpointError: it cannot be loaded.
        Exception: whatever the agent's source raises when it is asked for the agent.
    """
    checkpoint = read_checkpoint(stored, get_loop(source).codec)
    agent = await source.build(checkpoint.meta.to_info())
    if unknown := describe_unknown_phases(agent, checkpoint.state):
        return PreflightResult(problem=f"it would be left alone: it has {unknown}")
    pending = _list_pending_calls(agent, checkpoint)
    if agent.loop is not None:
        return PreflightResult(in_doubt=[f"{call.tool} {call.call_id}" for call in pending])
    finished = len(checkpoint.state.phases)
    tools = agent.profile(agent.phases[finished] if finished < len(agent.phases) else None).tools
    gone = sorted({call.tool for call in pending} - set(tools))
    doubtful = [
        f"{call.tool} {call.call_id}"
        for call in pending
        if call.tool in tools and tools[call.tool].effect is Effect.ONCE
    ]
    if gone and agent.missing_tools != "report":
        fate = "left alone" if agent.missing_tools == "defer" else "parked"
        return PreflightResult(problem=f"it would be {fate}: it calls {gone}, which the agent lacks", in_doubt=doubtful)
    return PreflightResult(in_doubt=doubtful)


def _list_pending_calls(agent: Agent, checkpoint: Checkpoint) -> list[PendingCall]:
    state = checkpoint.state
    return [call for call in get_loop(agent).pending_calls(state.history) if call.call_id not in state.results]


Level = Literal["ok", "warning", "wrong"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    level: Level
    detail: str
    runs: list[str] = []


class Doctor:
    """Looks at a store and at each of its runs once, one after the other."""

    def __init__(self, store: CheckpointStore, agents: Mapping[str, AgentSource] | None) -> None:
        """Examine `store`; with `agents`, whether these could go on with its runs."""
        self._store, self._agents = store, agents
        self._states: Counter[str] = Counter()
        self._size = 0
        self._owners: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        #: Run ids by what is wrong with them.
        self._damaged: dict[str, str] = {}
        self._missing_agents: dict[str, str] = {}
        self._not_resumable: dict[str, str] = {}
        self._parked: dict[str, str] = {}
        self._in_doubt: dict[str, str] = {}

    async def run(self) -> list[Finding]:
        """Everything, in the order of its weight for a reader."""
        found = await self._check_store()
        try:
            async for record in self._store.list_runs():
                await self._check_run(record)
        except StoreError as exc:
            return [*found, Finding(check="runs", level="wrong", detail=f"they cannot be listed: {exc}")]
        return [*found, *self._make_run_findings(), *self._make_code_findings()]

    async def _check_store(self) -> list[Finding]:
        if not isinstance(self._store, SupportsHealthCheck):
            return []
        seen = await self._store.check_health()
        newest = "the newest" if seen.version == seen.known_version else f"this code knows {seen.known_version}"
        free = f", {formatting.size(seen.free)} of it free" if seen.free else ""
        return [
            Finding(check="schema", level="ok", detail=f"version {seen.version}, {newest}"),
            Finding(check="size", level="ok", detail=f"{formatting.size(seen.size)}{free}"),
            Finding(check="soundness", level="ok", detail="no damage found")
            if not seen.problems
            else Finding(check="soundness", level="wrong", detail="; ".join(seen.problems)),
        ]

    async def _check_run(self, record: RunRecord) -> None:
        self._states[display_status(record)] += 1
        self._size += record.size
        if record.status is RunStatus.RUNNING and record.owner is not None:
            self._owners[record.owner_alive][record.owner] += 1
        if record.status is RunStatus.PARKED:
            self._parked[record.run_id] = record.reason
        try:
            stored = await self._store.load(record.run_id)
            read_checkpoint(stored, ANY_MESSAGE_CODEC)
        except RunNotFound:
            return  # it came to its end meanwhile
        except CheckpointError as exc:
            self._damaged[record.run_id] = format_error(exc)
            return
        if not record.is_terminal:
            await self._check_resumable(stored)

    async def _check_resumable(self, stored: StoredRun) -> None:
        """What would become of a run that can still go on."""
        record = stored.record
        source = (self._agents or {}).get(record.agent_name)
        if source is not None:
            seen = await _try_preflight(stored, source)
        else:
            transcript = Transcript()
            transcript.read(stored.entries)
            seen = PreflightResult(in_doubt=[f"{call.tool} {call.call_id}" for call in transcript.unanswered])
            # A child's agent is known to the tool that starts it.
            if self._agents is not None and record.parent_run_id is None:
                self._missing_agents[record.run_id] = (
                    f"no agent {record.agent_name} among {', '.join(sorted(self._agents))}"
                )
        if seen.problem:
            self._not_resumable[record.run_id] = seen.problem
        if seen.in_doubt and (record.is_interrupted or record.status is RunStatus.PARKED):
            self._in_doubt[record.run_id] = ", ".join(seen.in_doubt)

    # -- findings -----------------------------------------------------------------------------------------------

    def _make_run_findings(self) -> list[Finding]:
        states = ", ".join(f"{count} {state}" for state, count in sorted(self._states.items())) or "none"
        alive, dead = self._owners[True], self._owners[False]
        found = [
            Finding(check="runs", level="ok", detail=f"{states}; {formatting.size(self._size)} of journals"),
            Finding(
                check="workers",
                level="warning" if dead else "ok",
                detail=f"{len(alive)} alive with {alive.total()} runs, {len(dead)} dead with {dead.total()} runs",
            ),
            _make_finding("damage", "wrong", self._damaged, "every run can be read"),
        ]
        if self._parked:
            found.append(_make_finding("parked", "warning", self._parked, ""))
        return [*found, _make_finding("in doubt", "warning", self._in_doubt, "no call waits to be made again")]

    def _make_code_findings(self) -> list[Finding]:
        if self._agents is None:
            return []
        return [
            _make_finding("agents", "wrong", self._missing_agents, "every run has an agent that can take it"),
            _make_finding("preflight", "wrong", self._not_resumable, "every run would go on under this code"),
        ]


async def _try_preflight(stored: StoredRun, source: AgentSource) -> PreflightResult:
    try:
        return await run_preflight(stored, source)
    except CheckpointError as exc:
        return PreflightResult(problem=format_error(exc))
    except Exception as exc:  # the agent's source is the user's code
        return PreflightResult(problem=f"its agent cannot be built: {format_error(exc)}")


def _make_finding(check: str, level: Level, runs: Mapping[str, str], fine: str) -> Finding:
    if not runs:
        return Finding(check=check, level="ok", detail=fine)
    told = "; ".join(f"{run_id}: {why}" for run_id, why in list(runs.items())[:5])
    more = f"; and {len(runs) - 5} more" if len(runs) > 5 else ""
    return Finding(check=check, level=level, detail=told + more, runs=list(runs))
