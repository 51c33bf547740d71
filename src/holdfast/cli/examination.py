"""What `holdfast doctor` looks at, and what it finds."""

from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.checkpoint.codec import read_checkpoint
from holdfast.checkpoint.errors import CheckpointError, RunNotFound, StoreError
from holdfast.checkpoint.inspection import Inspectable
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import RunRecord, StoredRun
from holdfast.checkpoint.store import CheckpointStore
from holdfast.cli import amounts
from holdfast.cli.errors import one_line
from holdfast.cli.listing import shown_state
from holdfast.cli.preflight import ANY_MESSAGE, Preflight, preflight
from holdfast.cli.transcript import Transcript
from holdfast.run.agent import AgentSource

Level = Literal["ok", "warning", "wrong"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    level: Level
    detail: str
    runs: list[str] = []


class Examination:
    """Looks at a store and at each of its runs once, one after the other."""

    def __init__(self, store: CheckpointStore, agents: Mapping[str, AgentSource] | None) -> None:
        """Examine `store`; with `agents`, whether these could go on with its runs."""
        self._store, self._agents = store, agents
        self._states: Counter[str] = Counter()
        self._size = 0
        self._owners: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        #: Run ids by what is wrong with them.
        self._damaged: dict[str, str] = {}
        self._unknown: dict[str, str] = {}
        self._stuck: dict[str, str] = {}
        self._parked: dict[str, str] = {}
        self._in_doubt: dict[str, str] = {}

    async def findings(self) -> list[Finding]:
        """Everything, in the order of its weight for a reader."""
        found = await self._about_store()
        try:
            async for record in self._store.records():
                await self._look_at(record)
        except StoreError as exc:
            return [*found, Finding(check="runs", level="wrong", detail=f"they cannot be listed: {exc}")]
        return [*found, *self._about_runs(), *self._about_code()]

    async def _about_store(self) -> list[Finding]:
        if not isinstance(self._store, Inspectable):
            return []
        seen = await self._store.inspect()
        newest = "the newest" if seen.version == seen.known_version else f"this code knows {seen.known_version}"
        free = f", {amounts.size(seen.free)} of it free" if seen.free else ""
        return [
            Finding(check="schema", level="ok", detail=f"version {seen.version}, {newest}"),
            Finding(check="size", level="ok", detail=f"{amounts.size(seen.size)}{free}"),
            Finding(check="soundness", level="ok", detail="no damage found")
            if not seen.problems
            else Finding(check="soundness", level="wrong", detail="; ".join(seen.problems)),
        ]

    async def _look_at(self, record: RunRecord) -> None:
        self._states[shown_state(record)] += 1
        self._size += record.size
        if record.status is Status.RUNNING and record.owner is not None:
            self._owners[record.owner_alive][record.owner] += 1
        if record.status is Status.PARKED:
            self._parked[record.run_id] = record.reason
        try:
            stored = await self._store.load(record.run_id)
            read_checkpoint(stored, ANY_MESSAGE)
        except RunNotFound:
            return  # it came to its end meanwhile
        except CheckpointError as exc:
            self._damaged[record.run_id] = one_line(exc)
            return
        if not record.over:
            await self._look_ahead(stored)

    async def _look_ahead(self, stored: StoredRun) -> None:
        """What would become of a run that can still go on."""
        record = stored.record
        source = (self._agents or {}).get(record.agent_name)
        if source is not None:
            seen = await _preflight(stored, source)
        else:
            transcript = Transcript()
            transcript.read(stored.entries)
            seen = Preflight(in_doubt=[f"{call.tool} {call.call_id}" for call in transcript.unanswered])
            # A child's agent is known to the tool that starts it.
            if self._agents is not None and record.parent_run_id is None:
                self._unknown[record.run_id] = f"no agent {record.agent_name} among {', '.join(sorted(self._agents))}"
        if seen.trouble:
            self._stuck[record.run_id] = seen.trouble
        if seen.in_doubt and (record.interrupted or record.status is Status.PARKED):
            self._in_doubt[record.run_id] = ", ".join(seen.in_doubt)

    # -- findings -----------------------------------------------------------------------------------------------

    def _about_runs(self) -> list[Finding]:
        states = ", ".join(f"{count} {state}" for state, count in sorted(self._states.items())) or "none"
        alive, dead = self._owners[True], self._owners[False]
        found = [
            Finding(check="runs", level="ok", detail=f"{states}; {amounts.size(self._size)} of journals"),
            Finding(
                check="workers",
                level="warning" if dead else "ok",
                detail=f"{len(alive)} alive with {alive.total()} runs, {len(dead)} dead with {dead.total()} runs",
            ),
            _of_runs("damage", "wrong", self._damaged, "every run can be read"),
        ]
        if self._parked:
            found.append(_of_runs("parked", "warning", self._parked, ""))
        return [*found, _of_runs("in doubt", "warning", self._in_doubt, "no call waits to be made again")]

    def _about_code(self) -> list[Finding]:
        if self._agents is None:
            return []
        return [
            _of_runs("agents", "wrong", self._unknown, "every run has an agent that can take it"),
            _of_runs("preflight", "wrong", self._stuck, "every run would go on under this code"),
        ]


async def _preflight(stored: StoredRun, source: AgentSource) -> Preflight:
    try:
        return await preflight(stored, source)
    except CheckpointError as exc:
        return Preflight(trouble=one_line(exc))
    except Exception as exc:  # the agent's source is the user's code
        return Preflight(trouble=f"its agent cannot be built: {one_line(exc)}")


def _of_runs(check: str, level: Level, runs: Mapping[str, str], fine: str) -> Finding:
    if not runs:
        return Finding(check=check, level="ok", detail=fine)
    told = "; ".join(f"{run_id}: {why}" for run_id, why in list(runs.items())[:5])
    more = f"; and {len(runs) - 5} more" if len(runs) > 5 else ""
    return Finding(check=check, level=level, detail=told + more, runs=list(runs))
