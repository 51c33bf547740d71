"""Re-enters the workflow runs of a store with other code, before a deploy: what would not fit?"""

import asyncio
import contextlib
import sys
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.checkpoint.codec import decode, decode_run
from holdfast.checkpoint.errors import CheckpointError, RunNotFound
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import TERMINAL_STATUSES, RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, iter_runs
from holdfast.core.agents.agent import Agent, AgentSource
from holdfast.core.ports import NullCheckpointer, Resumption
from holdfast.core.run.info import WORKFLOW_LOOP_NAME, AgentDetails
from holdfast.core.run.messages import NATIVE_CODEC
from holdfast.core.workflow.reentry import Mismatch, reenter
from holdfast.runtime.reading.transcript import get_loop_name

#: Runs that are re-entered at the same time. Most of one's time is a pause of the event loop.
_CONCURRENCY = 20

#: Runs that are re-entered unless the caller says otherwise.
DEFAULT_LIMIT = 1000

_STATUSES = frozenset(RunStatus) - TERMINAL_STATUSES


class ReenteredRun(msgspec.Struct, frozen=True, kw_only=True):
    """A stored run of a workflow that was re-entered, and what did not fit."""

    run_id: str
    agent: str
    mismatches: list[Mismatch]


class Reentries(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that were re-entered."""

    runs: list[ReenteredRun]
    #: There were more runs than the limit.
    truncated: bool

    @property
    def mismatches(self) -> list[str]:
        """The mismatches that are not harmless, each with its run, as text."""
        return [
            f"run {run.run_id} of {run.agent}: {each.detail}"
            for run in self.runs
            for each in run.mismatches
            if not each.harmless
        ]


async def reenter_runs(
    store: RunStore, agents: Mapping[str, AgentSource], *, agent: str | None = None, limit: int = DEFAULT_LIMIT
) -> Reentries:
    """Call the workflow of each run that has not ended, up to its first call without a result, oldest run first.

    No call is made and nothing is written to the store, so the runs may be executing. The code between the calls runs,
    as it does in each attempt; what it prints goes to stderr.

    Args:
        store: an open one.
        agents: the agents and workflows of the new code, by name.
        agent: re-enter only the runs of this workflow.
        limit: of the runs that are re-entered.

    Raises:
        StoreError: the runs cannot be listed.
    """
    found: list[RunRecord] = []
    truncated = False
    async for record in iter_runs(store, RunFilter(statuses=_STATUSES, agent_name=agent)):
        if _is_in_workflow(record, agents.get(record.agent_name)):
            if len(found) == limit:
                truncated = True
                break
            found.append(record)
    runs: list[ReenteredRun] = []
    with contextlib.redirect_stdout(sys.stderr):
        for start in range(0, len(found), _CONCURRENCY):
            batch = found[start : start + _CONCURRENCY]
            runs += filter(None, await asyncio.gather(*(_reenter_one(store, record, agents) for record in batch)))
    return Reentries(runs=runs, truncated=truncated)


def _is_in_workflow(record: RunRecord, source: AgentSource | None) -> bool:
    """Whether code decides the next call of the run: that of a workflow, or of a workflow in the current phase."""
    if get_loop_name(record) == WORKFLOW_LOOP_NAME:
        return True
    if not isinstance(source, Agent):
        return False
    phase = next(iter(source.phases[decode(record.progress, Progress).phases :]), None)
    inner = None if phase is None or phase.agent is None else AgentDetails.from_source(phase.agent).loop
    return inner is not None and inner.name == WORKFLOW_LOOP_NAME


async def _reenter_one(store: RunStore, record: RunRecord, agents: Mapping[str, AgentSource]) -> ReenteredRun | None:
    try:
        mismatches = await _compare(store, record, agents)
    except RunNotFound:
        return None  # it has ended and was removed meanwhile
    except CheckpointError as exc:
        mismatches = [Mismatch(kind="workflow", detail=f"it cannot be loaded: {exc}")]
    return ReenteredRun(run_id=record.run_id, agent=record.agent_name, mismatches=list(mismatches))


async def _compare(store: RunStore, record: RunRecord, agents: Mapping[str, AgentSource]) -> Sequence[Mismatch]:
    source = agents.get(record.agent_name)
    if source is None:
        detail = f"there is no workflow {record.agent_name} among {', '.join(sorted(agents))}"
        # The workflow of a child may be known only to its parent.
        return [Mismatch(kind="workflow", detail=detail, harmless=record.parent_run_id is not None)]
    stored = await store.load(record.run_id)
    checkpoint = decode_run(stored, NATIVE_CODEC)
    resumption = Resumption(
        info=checkpoint.info,
        checkpointer=NullCheckpointer(),
        state=checkpoint.state,
        is_cancelled=stored.record.cancel_requested,
    )
    return await reenter(source, resumption, agents, reason=stored.record.reason)
