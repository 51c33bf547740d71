"""What a person or another process does to stored runs: submit, await, cancel, unpark, fork."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.codec import (
    FORMAT_VERSION,
    Begin,
    Checkpoint,
    Progress,
    RunMeta,
    Step,
    decode,
    encode,
    read_checkpoint,
)
from holdfast.checkpoint.errors import (
    CheckpointError,
    RunConflict,
    RunExists,
    RunNotFound,
)
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import NewRun, Release, RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.concurrency import run_in_background
from holdfast.core.agent import AgentSource
from holdfast.core.errors import DefinitionError, RunCancelled, RunFailed, RunParked
from holdfast.core.execution.loop import Loop
from holdfast.core.execution.native import NATIVE_LOOP, get_loop
from holdfast.core.execution.steps import IN_DOUBT_KEY, UNKNOWN_OUTCOME
from holdfast.core.info import RunInfo, new_run_id
from holdfast.core.ports import Resumption
from holdfast.core.result import Result
from holdfast.stores.redacting import stored_prompt

#: How long the end of a submitted run is kept, unless the host says otherwise.
DEFAULT_RETENTION = timedelta(days=7)

#: How long a waiter trusts that a sign will come before it looks by itself.
_POLL_INTERVAL = timedelta(seconds=1)


class RunClient:
    """Acts on the runs of one store, whoever drives them."""

    def __init__(
        self,
        checkpoints: StoreCheckpoints,
        agents: Mapping[str, AgentSource],
        *,
        retention: timedelta = DEFAULT_RETENTION,
    ) -> None:
        """Make the operations.

        Args:
            retention: how long the end of a submitted run is kept.
        """
        self._checkpoints, self._agents, self._retention = checkpoints, agents, retention
        self._store = checkpoints.store

    def _loop_for(self, agent_name: str) -> Loop:
        agent = self._agents.get(agent_name)
        return get_loop(agent) if agent is not None else NATIVE_LOOP

    async def get_record(self, run_id: str) -> RunRecord:
        """The run's record, without its journal."""
        return await self._store.get_record(run_id)

    async def submit(self, info: RunInfo) -> str:
        """Put a run into the store for whoever takes it. Durable when this returns; the same again is fine.

        Raises:
            RunConflict: a run with this id has another agent or another prompt. RunExists: it was not submitted, so
                its result will not be kept.
        """
        new = _make_queued_run(RunMeta.from_info(info, submitted=True), Progress(), [])
        while True:
            try:
                await self._store.create(new)
                return info.run_id
            except RunExists as exc:
                with suppress(RunNotFound):  # it has come to its end meanwhile
                    stored = await self.load_same_request(info)
                    if decode(stored.entries[0].body, Begin).meta.submitted:
                        return info.run_id
                    advice = "it was not submitted, so its result will not be kept; await it, or choose another id"
                    raise RunExists(info.run_id, advice) from exc

    async def load_same_request(self, info: RunInfo) -> StoredRun:
        """Load the run with this id, if it has the same agent and prompt.

        Raises:
            RunConflict: it has another agent or another prompt. RunNotFound: there is none.
        """
        stored = await self._store.load(info.run_id)
        there = decode(stored.entries[0].body, Begin).meta
        if there.agent_name != info.agent_name or there.prompt not in self.equivalent_prompts(info):
            raise RunConflict(info.run_id, there.agent_name)
        return stored

    def equivalent_prompts(self, info: RunInfo) -> tuple[str, str]:
        """The prompt of a run as it was given, and as it can be read from the store."""
        return info.prompt, stored_prompt(self._store, info.prompt)

    async def result(self, run_id: str) -> Result:
        """Wait for the end of a submitted run, whichever process drives it.

        Raises:
            RunNotFound: there is no such run, or its result has been kept for long enough.
            RunFailed: it failed. RunCancelled: it was cancelled. RunParked: it waits for a person.
        """
        while True:
            record = await self.get_record(run_id)
            if record.status is RunStatus.PARKED:
                raise _make_parked_error(record)
            if record.is_terminal:
                return self.read_result(await self._store.load(run_id))
            await self._store.wait_for_change(_POLL_INTERVAL)

    def read_result(self, stored: StoredRun) -> Result:
        """Return the result of a finished run. Raises as `result` does."""
        run_id = stored.record.run_id
        if stored.record.status is RunStatus.PARKED:
            raise _make_parked_error(stored.record)
        loop = self._loop_for(stored.record.agent_name)
        checkpoint = read_checkpoint(stored, loop.codec)
        outcome = checkpoint.outcome
        if stored.record.status is RunStatus.CANCELLED:
            raise RunCancelled(f"run {run_id} was cancelled")
        if outcome is None or stored.record.status is RunStatus.FAILED:
            raise RunFailed(f"run {run_id} failed: {stored.record.reason}")
        return Result(
            run_id=run_id,
            output=loop.load_output(outcome.output),
            usage=outcome.usage,
            steps=checkpoint.state.steps,
            phases=tuple(checkpoint.state.phases),
            messages=checkpoint.state.history,
        )

    async def cancel(self, run_id: str) -> None:
        """Cancel a run. Raises as `StoreCheckpoints.cancel` does."""
        await self._checkpoints.cancel(run_id)

    async def reclaim_after_cancel(self, claim: Claim) -> tuple[Claim, Release]:
        """A new claim on a run that a person resumes, and that was asked to cancel when its owner died; and its end.

        The cancel comes into force, as it would have if the owner had lived, and is outweighed like any earlier end.
        """
        ending = Release(
            status=RunStatus.CANCELLED, reason="cancelled before it was resumed", retention=self._retention
        )
        await self._store.release(claim, ending)
        return await self._checkpoints.claim_with_undo(claim.run_id, RunStatus.CANCELLED, ending), ending

    async def unpark(self, run_id: str, resolutions: Mapping[str, Any] | None = None) -> None:
        """Let a parked run go on: recovery takes it from now on, with its strikes cleared.

        Runs that it started and that are parked go on with it. Unpark such a one first to answer for its calls.

        Args:
            answers: for calls in doubt, by call id: what became of them. The model is told that of the others the
                outcome is unknown.

        Raises:
            RunNotFound: there is no such run. RunNotClaimable: it is not parked. RunBusy: somebody else unparks it now.
                CheckpointError: an answer is for a call that does not wait for one.
        """
        parked = Release(status=RunStatus.PARKED, reason=(await self.get_record(run_id)).reason)
        claim = await self._checkpoints.claim_with_undo(run_id, RunStatus.PARKED, parked)
        try:
            await self._record_resolutions(claim, resolutions or {})
            for child in await self._list_parked_children(run_id):
                await self.unpark(child)
        except asyncio.CancelledError:
            run_in_background(self._checkpoints.release_claim(claim, parked))
            raise
        except BaseException:
            await self._checkpoints.release_claim(claim, parked)
            raise
        # It has its answers. From here on it goes on, if not at once then when the store takes it back.
        await self._checkpoints.release_claim(claim, Release(status=RunStatus.INTERRUPTED))

    async def _list_parked_children(self, run_id: str) -> list[str]:
        wanted = RunFilter(parent_run_id=run_id, statuses=frozenset({RunStatus.PARKED}))
        return [record.run_id async for record in self._store.list_runs(wanted)]

    async def _record_resolutions(self, claim: Claim, resolutions: Mapping[str, Any]) -> None:
        """Record what became of the calls that the run was parked for. The others are made when it goes on."""
        resumption = await self._prepare(claim)
        state, loop = resumption.state, self._loop_for(resumption.info.agent_name)
        waiting = [call for call in loop.pending_calls(state.history) if call.call_id not in state.results]
        unknown = set(resolutions) - {call.call_id for call in waiting}
        if unknown:
            raise CheckpointError(f"run {claim.run_id}: no call waits for the answers {sorted(unknown)}")
        asked = state.annotations.pop(IN_DOUBT_KEY, ())
        for call in waiting:
            if call.call_id in resolutions:
                state.results[call.call_id] = loop.make_result(call, resolutions[call.call_id])
            elif call.call_id in asked:
                state.results[call.call_id] = loop.make_result(call, UNKNOWN_OUTCOME, error=True)
        await resumption.checkpointer.save(state, force=True)

    async def fork(self, run_id: str, at_step: int, *, new_id: str | None = None) -> str:
        """Submit a new run that begins where `run_id` was after `at_step`. The old one is not touched.

        Raises:
            CheckpointError: that step is not in the journal: not reached, saved together with a later one, or
                compacted away.
        """
        stored = await self._store.load(run_id)
        steps = [
            (place, decode(bytes(decode(entry.body, Step).progress), Progress))
            for place, entry in enumerate(stored.entries)
            if entry.kind is EntryKind.STEP
        ]
        found = [(place, progress) for place, progress in steps if progress.steps == at_step]
        if not found:
            known = ", ".join(str(progress.steps) for _, progress in steps) or "none"
            raise CheckpointError(f"run {run_id} cannot be forked at step {at_step}: its journal has {known}")
        place, progress = found[-1]
        old = decode(stored.entries[0].body, Begin).meta
        labels = {**old.labels, "forked_from": run_id, "forked_at": str(at_step)}
        meta = msgspec.structs.replace(
            old, run_id=new_id or new_run_id(), parent_run_id=None, labels=labels, submitted=True
        )
        await self._store.create(_make_queued_run(meta, progress, list(stored.entries[1 : place + 1])))
        return meta.run_id

    async def load_checkpoint(self, run_id: str) -> Checkpoint:
        """What is stored of a run. Changes nothing."""
        stored = await self._store.load(run_id)
        return read_checkpoint(stored, self._loop_for(stored.record.agent_name).codec)

    async def _prepare(self, claim: Claim) -> Resumption:
        stored = await self._store.load(claim.run_id)
        codec = self._loop_for(stored.record.agent_name).codec
        return self._checkpoints.resume(claim, stored, codec, retention=self._retention)


def _make_parked_error(record: RunRecord) -> RunParked:
    reason, _, detail = record.reason.partition(": ")
    return RunParked(reason, detail)


def find_agent(agents: Mapping[str, AgentSource], name: str) -> AgentSource:
    """Return the agent of this name.

    Raises:
        DefinitionError: there is none.
    """
    if name not in agents:
        raise DefinitionError(f"no agent {name!r}: known are {', '.join(sorted(agents)) or 'none'}")
    return agents[name]


def _make_queued_run(meta: RunMeta, progress: Progress, entries: list[Entry]) -> NewRun:
    """A queued run: its begin, and what it takes over from another."""
    begin = Entry(seq=0, kind=EntryKind.BEGIN, body=encode(Begin(version=FORMAT_VERSION, meta=meta)))
    taken = [msgspec.structs.replace(entry, seq=number) for number, entry in enumerate(entries, start=1)]
    return NewRun(
        run_id=meta.run_id,
        agent_name=meta.agent_name,
        caller_id=meta.caller_id,
        parent_run_id=meta.parent_run_id,
        meta=encode(meta.summary()),
        progress=encode(progress),
        entries=[begin, *taken],
    )
