"""Makes runs that have stopped interrupted again, so that a worker resumes them: unpark, requeue."""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.checkpoint.claims import Claims, make_cancelled_release
from holdfast.checkpoint.errors import CheckpointError, RunBusy, RunNotClaimable
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, Release, RunFilter, RunStatus
from holdfast.checkpoint.store import get_record, iter_runs
from holdfast.checkpoint.workers import Claim
from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.calls import NOT_EXECUTED, UNKNOWN
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.loop import PendingCall
from holdfast.core.run.mail import BUDGET_TOPIC, Mail
from holdfast.core.run.run_events import CallDecided
from holdfast.core.run.state import RunState
from holdfast.core.run.waiting import Decision, WaitingCall
from holdfast.ids import make_id
from holdfast.runtime.agent_registry import find_loop


class Requeuer:
    """Claims runs briefly and leaves them interrupted. The arguments and errors are those of `RunClient`."""

    def __init__(self, checkpoints: StoreCheckpoints, agents: Mapping[str, AgentSource]) -> None:
        """Make a requeuer.

        Args:
            agents: by name. Their codecs decode transcripts.
        """
        self._checkpoints, self._agents = checkpoints, agents
        self._store = checkpoints.store

    async def unpark(self, run_id: str, resolutions: Mapping[str, Any], *, by: str = "", via: str = "") -> None:
        """Make a parked run interrupted and clear its strikes. Its parked children are unparked with it."""
        record = await get_record(self._store, run_id)
        parked = Release(status=RunStatus.PARKED, despite_cancel=record.cancel_requested, reason=record.reason)
        claims = self._checkpoints.claims
        with claims.use():
            claim = await claims.claim_with_status(run_id, RunStatus.PARKED, parked)
            try:
                await self._record_resolutions(claim, resolutions, by, via)
                for child in await self._list_parked_children(run_id):
                    await self.unpark(child, {})
            except asyncio.CancelledError:
                claims.start(claims.release_claim(claim, parked))
                raise
            except BaseException:
                await claims.release_claim(claim, parked)
                raise
            # The resolutions are saved. If this release fails, it is retried.
            await claims.release_claim(claim, Release(status=RunStatus.INTERRUPTED))

    async def requeue(self, run_id: str) -> None:
        """Make a parked, failed or cancelled run interrupted, or one that waits for its budget."""
        record = await get_record(self._store, run_id)
        if record.status is RunStatus.WAITING and BUDGET_TOPIC in record.wake_on:
            await self._store.post(run_id, Mail(mail_id=make_id(), topic=BUDGET_TOPIC, body=b"{}"))
            return None
        if record.status is RunStatus.PARKED:
            return await self.unpark(run_id, {})
        if record.status not in (RunStatus.FAILED, RunStatus.CANCELLED):
            if record.status in CLAIMABLE_STATUSES and not record.owner_alive:
                return None  # it is due already
            if record.owner is not None and record.owner_alive:
                raise RunBusy(run_id, record.owner)
            raise RunNotClaimable(run_id, record.status, record.reason)
        due = Release(status=RunStatus.INTERRUPTED)
        claims = self._checkpoints.claims
        with claims.use():
            claim = await claims.claim_with_status(run_id, record.status, due)
            return await claims.release_claim(claim, due)

    async def _list_parked_children(self, run_id: str) -> list[str]:
        wanted = RunFilter(parent_run_id=run_id, statuses=frozenset({RunStatus.PARKED}))
        return [record.run_id async for record in iter_runs(self._store, wanted)]

    async def _record_resolutions(self, claim: Claim, resolutions: Mapping[str, Any], by: str, via: str) -> None:
        """Save the outcomes of the calls in doubt, and who gave them. Other pending calls are made on resume."""
        stored = await self._store.load(claim.run_id)
        loop = find_loop(self._agents, stored.record.agent_name)
        resumption = self._checkpoints.resume(claim, stored, loop.codec, executes=False)
        state = resumption.state
        pending = [call for call in loop.pending_calls(state.history) if call.call_id not in state.results]
        in_doubt = state.calls.in_doubt
        # A workflow no longer wants a call in doubt whose branch has lost a race: its outcome changes nothing.
        unknown = set(resolutions).difference((call.call_id for call in pending), in_doubt)
        if unknown:
            raise CheckpointError(f"run {claim.run_id}: no pending call has the id {', '.join(sorted(unknown))}")
        state.calls = msgspec.structs.replace(state.calls, in_doubt=())
        now = self._checkpoints.claims.clock.now()
        for call in pending:
            if call.call_id not in resolutions and call.call_id not in in_doubt:
                continue
            given = resolutions.get(call.call_id, UNKNOWN)
            comment = ""
            if given is NOT_EXECUTED:
                comment = "it did not happen, and is made now"
                not_started = tuple(sorted({*state.calls.not_started, call.call_id}))
                state.calls = msgspec.structs.replace(state.calls, not_started=not_started)
            elif given is UNKNOWN:
                comment = "its outcome is unknown"
                state.results[call.call_id] = loop.make_result(call, UNKNOWN_OUTCOME, error=True)
            else:
                state.results[call.call_id] = loop.make_result(call, given)
            decision = Decision(kind="value", comment=comment, by=by, via=via, at=now)
            _record_decision(claim.run_id, state, call, decision, now)
        await resumption.checkpointer.save(state, force=True)


def _record_decision(run_id: str, state: RunState, call: PendingCall, decision: Decision, now: datetime) -> None:
    """Record who has resolved a call in doubt: for watchers and observers, and with the step if it has its result."""
    step = state.steps + 1
    event = CallDecided(run_id=run_id, step=step, call_id=call.call_id, tool=call.tool, decision=decision, at=now)
    state.recorded_events.append((len(state.history), msgspec.json.encode(event)))
    wait = WaitingCall(
        run_id=run_id,
        call_id=call.call_id,
        step=step,
        tool=call.tool,
        kind="result",
        arguments=call.arguments,
        asked_at=now,
        decision=decision,
    )
    state.calls = msgspec.structs.replace(state.calls, resolved=(*state.calls.resolved, wait))
    if call.call_id in state.results:
        state.calls = state.calls.set_wait(wait)


async def reclaim_after_cancel(claims: Claims, claim: Claim) -> tuple[Claim, Release]:
    """Claim a run again that a person resumes despite a pending cancel request: record the cancel first.

    Returns the new claim, and the release that undoes it.
    """
    cancelled = make_cancelled_release("cancelled before it was resumed", claims.settings.retention)
    await claims.store.release(claim, cancelled)
    return await claims.claim_with_status(claim.run_id, RunStatus.CANCELLED, cancelled), cancelled
