"""What a person or another process does to stored runs: submit, await, cancel, unpark, fork."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.claiming import run_in_background, shielded_with_undo
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
    RecordDecodeError,
    RunBusy,
    RunConflict,
    RunDamaged,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    UnknownVersion,
)
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.record import NewRun, Release, RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import CheckpointStore
from holdfast.core.agent import AgentSource
from holdfast.core.errors import RunCancelled, RunFailed, RunParked
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

    @property
    def _store(self) -> CheckpointStore:
        assert self._checkpoints.store is not None, "an App without a store makes no Operations"
        return self._checkpoints.store

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
                    if (await self.ensure_same_request(info)).submitted:
                        return info.run_id
                    advice = "it was not submitted, so its result will not be kept; await it, or choose another id"
                    raise RunExists(info.run_id, advice) from exc

    async def ensure_same_request(self, info: RunInfo) -> RunMeta:
        """What is stored of the run with this id, if it is the same run.

        Raises:
            RunConflict: it has another agent or another prompt. RunNotFound: there is none.
        """
        stored = await self._store.load(info.run_id)
        there = decode(stored.entries[0].body, Begin).meta
        if there.agent_name != info.agent_name or there.prompt not in self.equivalent_prompts(info):
            raise RunConflict(info.run_id, there.agent_name)
        return there

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
                reason, _, detail = record.reason.partition(": ")
                raise RunParked(reason, detail)
            if record.is_terminal:
                return await self._load_result(run_id)
            await self._store.wait_for_change(_POLL_INTERVAL)

    async def _load_result(self, run_id: str) -> Result:
        stored = await self._store.load(run_id)
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
        """Cancel a run that nobody drives, or ask its owner to. The unfinished runs that it started end before it does.

        Raises:
            RunNotFound: there is no such run. RunNotClaimable: it is over already.
        """
        try:
            claim, as_it_was = await self._claim_to_cancel(run_id)
        except RunBusy:
            await self._store.request_cancel(run_id)
            return
        try:
            await self.cancel_children(run_id)
            resumption = await self._prepare(claim)
        except (RunDamaged, RecordDecodeError, UnknownVersion) as exc:
            # It cannot be read, so it cannot be said who waits for its end: keep it for a while, over.
            ending = Release(status=RunStatus.CANCELLED, reason=f"cancelled; {exc}", retention=self._retention)
            await self._checkpoints.release(claim, ending)
        except asyncio.CancelledError:
            run_in_background(self._checkpoints.release_claim(claim, as_it_was))
            raise
        except BaseException:
            await self._checkpoints.release_claim(claim, as_it_was)
            raise
        else:
            await resumption.checkpointer.fail(RunCancelled(f"run {run_id} was cancelled"))

    async def _claim_to_cancel(self, run_id: str) -> tuple[Claim, Release]:
        """A claim on a run that nobody drives, and what puts the run back."""
        worker_id = self._checkpoints.worker_id
        try:
            claim = await shielded_with_undo(
                self._store.claim(run_id, worker_id),
                lambda claim: self._checkpoints.release_claim(claim, _restore_interrupted(claim)),
            )
        except RunNotClaimable as exc:
            if exc.status != RunStatus.PARKED:
                raise
            parked = Release(status=RunStatus.PARKED, reason=exc.reason)
            taking = self._store.claim(run_id, worker_id, statuses={RunStatus.PARKED})
            return await shielded_with_undo(
                taking, lambda claim: self._checkpoints.release_claim(claim, parked)
            ), parked
        return claim, _restore_interrupted(claim)

    async def cancel_children(self, run_id: str) -> None:
        """Cancel the unfinished runs below a run that the caller has claimed, and will cancel after them.

        Until then they are left to it, so that recovery does not go on with them. Should this process die half-way,
        whoever takes the run cancels it, since that stays asked for.
        """
        children = [child async for child in self._store.list_runs(RunFilter(parent_run_id=run_id))]
        if children:
            await self._store.request_cancel(run_id)
        for child in children:
            if child.is_terminal:
                await self.cancel_children(child.run_id)
                continue
            with suppress(RunNotFound, RunNotClaimable):  # it has come to its end meanwhile
                await self.cancel(child.run_id)

    async def reclaim_after_cancel(self, claim: Claim) -> tuple[Claim, Release]:
        """A new claim on a run that a person resumes, and that was asked to cancel when its owner died; and its end.

        The cancel comes into force, as it would have if the owner had lived, and is outweighed like any earlier end.
        """
        ending = Release(
            status=RunStatus.CANCELLED, reason="cancelled before it was resumed", retention=self._retention
        )
        await self._store.release(claim, ending)
        taking = self._store.claim(claim.run_id, claim.worker_id, statuses={RunStatus.CANCELLED})
        return await shielded_with_undo(taking, lambda taken: self._checkpoints.release_claim(taken, ending)), ending

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
        taking = self._store.claim(run_id, self._checkpoints.worker_id, statuses={RunStatus.PARKED})
        claim = await shielded_with_undo(taking, lambda claim: self._checkpoints.release_claim(claim, parked))
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


def _restore_interrupted(claim: Claim) -> Release:
    return Release(status=RunStatus.INTERRUPTED, strikes=max(0, claim.strikes - 1))


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
