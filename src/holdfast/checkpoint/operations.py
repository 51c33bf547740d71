"""What a person or another process does to stored runs: submit, await, cancel, unpark, fork."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.claiming import in_background, seen_through
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
    RunBusy,
    RunConflict,
    RunDamaged,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    UndecodableRecord,
    UnknownVersion,
)
from holdfast.checkpoint.factory import Checkpoints
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.record import Ending, NewRun, RunFilter, RunRecord
from holdfast.checkpoint.redacting import stored_prompt
from holdfast.checkpoint.store import CheckpointStore
from holdfast.run.agent import AgentSource
from holdfast.run.drive import IN_DOUBT, UNKNOWN_OUTCOME
from holdfast.run.errors import RunCancelled, RunFailed, RunParked
from holdfast.run.info import RunInfo, new_run_id
from holdfast.run.loop import Loop
from holdfast.run.native import NATIVE_LOOP, loop_of
from holdfast.run.outcome import Result
from holdfast.run.ports import Resumption

#: Past every entry: loads the record alone.
_RECORD_ONLY = 2**62

#: How long the end of a submitted run is kept, unless the host says otherwise.
RETENTION = timedelta(days=7)

#: How long a waiter trusts that a sign will come before it looks by itself.
_LOOK = timedelta(seconds=1)


class Operations:
    """Acts on the runs of one store, whoever drives them."""

    def __init__(
        self, checkpoints: Checkpoints, agents: Mapping[str, AgentSource], *, retention: timedelta = RETENTION
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

    def _loop(self, agent_name: str) -> Loop:
        agent = self._agents.get(agent_name)
        return loop_of(agent) if agent is not None else NATIVE_LOOP

    async def record(self, run_id: str) -> RunRecord:
        """The run's record, without its journal."""
        return (await self._store.load(run_id, after=_RECORD_ONLY)).record

    async def submit(self, info: RunInfo) -> str:
        """Put a run into the store for whoever takes it. Durable when this returns; the same again is fine.

        Raises:
            RunConflict: a run with this id has another agent or another prompt. RunExists: it was not submitted, so
                its result will not be kept.
        """
        new = _new_run(RunMeta.of(info, submitted=True), Progress(), [])
        while True:
            try:
                await self._store.create(new)
                return info.run_id
            except RunExists as exc:
                with suppress(RunNotFound):  # it has come to its end meanwhile
                    if (await self.check_same(info)).submitted:
                        return info.run_id
                    advice = "it was not submitted, so its result will not be kept; await it, or choose another id"
                    raise RunExists(info.run_id, advice) from exc

    async def check_same(self, info: RunInfo) -> RunMeta:
        """What is stored of the run with this id, if it is the same run.

        Raises:
            RunConflict: it has another agent or another prompt. RunNotFound: there is none.
        """
        stored = await self._store.load(info.run_id)
        there = decode(stored.entries[0].body, Begin).meta
        if there.agent_name != info.agent_name or there.prompt not in self.prompts(info):
            raise RunConflict(info.run_id, there.agent_name)
        return there

    def prompts(self, info: RunInfo) -> tuple[str, str]:
        """The prompt of a run as it was given, and as it can be read from the store."""
        return info.prompt, stored_prompt(self._store, info.prompt)

    async def result(self, run_id: str) -> Result:
        """Wait for the end of a submitted run, whichever process drives it.

        Raises:
            RunNotFound: there is no such run, or its result has been kept for long enough.
            RunFailed: it failed. RunCancelled: it was cancelled. RunParked: it waits for a person.
        """
        while True:
            record = await self.record(run_id)
            if record.status is Status.PARKED:
                reason, _, detail = record.reason.partition(": ")
                raise RunParked(reason, detail)
            if record.over:
                return await self._end(run_id)
            await self._store.changed(_LOOK)

    async def _end(self, run_id: str) -> Result:
        stored = await self._store.load(run_id)
        loop = self._loop(stored.record.agent_name)
        checkpoint = read_checkpoint(stored, loop.codec)
        outcome = checkpoint.outcome
        if stored.record.status is Status.CANCELLED:
            raise RunCancelled(f"run {run_id} was cancelled")
        if outcome is None or stored.record.status is Status.FAILED:
            raise RunFailed(f"run {run_id} failed: {stored.record.reason}")
        return Result(
            run_id=run_id,
            output=loop.load_output(outcome.output),
            usage=outcome.usage,
            iterations=checkpoint.state.iteration,
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
            resumption = await self._resumption(claim)
        except (RunDamaged, UndecodableRecord, UnknownVersion) as exc:
            # It cannot be read, so it cannot be said who waits for its end: keep it for a while, over.
            ending = Ending(status=Status.CANCELLED, reason=f"cancelled; {exc}", keep=self._retention)
            await self._checkpoints.settle(claim, ending)
        except asyncio.CancelledError:
            in_background(self._checkpoints.give_back(claim, as_it_was))
            raise
        except BaseException:
            await self._checkpoints.give_back(claim, as_it_was)
            raise
        else:
            await resumption.checkpointer.fail(RunCancelled(f"run {run_id} was cancelled"))

    async def _claim_to_cancel(self, run_id: str) -> tuple[Claim, Ending]:
        """A claim on a run that nobody drives, and what puts the run back."""
        worker_id = self._checkpoints.worker_id
        try:
            claim = await seen_through(
                self._store.claim(run_id, worker_id), lambda claim: self._checkpoints.give_back(claim, _left(claim))
            )
        except RunNotClaimable as exc:
            if exc.status != Status.PARKED:
                raise
            parked = Ending(status=Status.PARKED, reason=exc.reason)
            taking = self._store.claim(run_id, worker_id, statuses={Status.PARKED})
            return await seen_through(taking, lambda claim: self._checkpoints.give_back(claim, parked)), parked
        return claim, _left(claim)

    async def cancel_children(self, run_id: str) -> None:
        """Cancel the unfinished runs below a run that the caller has claimed, and will cancel after them.

        Until then they are left to it, so that recovery does not go on with them. Should this process die half-way,
        whoever takes the run cancels it, since that stays asked for.
        """
        children = [child async for child in self._store.records(RunFilter(parent_run_id=run_id))]
        if children:
            await self._store.request_cancel(run_id)
        for child in children:
            if child.over:
                await self.cancel_children(child.run_id)
                continue
            with suppress(RunNotFound, RunNotClaimable):  # it has come to its end meanwhile
                await self.cancel(child.run_id)

    async def outweigh_cancel(self, claim: Claim) -> tuple[Claim, Ending]:
        """A new claim on a run that a person resumes, and that was asked to cancel when its owner died; and its end.

        The cancel comes into force, as it would have if the owner had lived, and is outweighed like any earlier end.
        """
        ending = Ending(status=Status.CANCELLED, reason="cancelled before it was resumed", keep=self._retention)
        await self._store.settle(claim, ending)
        taking = self._store.claim(claim.run_id, claim.worker_id, statuses={Status.CANCELLED})
        return await seen_through(taking, lambda taken: self._checkpoints.give_back(taken, ending)), ending

    async def unpark(self, run_id: str, answers: Mapping[str, Any] | None = None) -> None:
        """Let a parked run go on: recovery takes it from now on, with its strikes cleared.

        Runs that it started and that are parked go on with it. Unpark such a one first to answer for its calls.

        Args:
            answers: for calls in doubt, by call id: what became of them. The model is told that of the others the
                outcome is unknown.

        Raises:
            RunNotFound: there is no such run. RunNotClaimable: it is not parked. RunBusy: somebody else unparks it now.
                CheckpointError: an answer is for a call that does not wait for one.
        """
        parked = Ending(status=Status.PARKED, reason=(await self.record(run_id)).reason)
        taking = self._store.claim(run_id, self._checkpoints.worker_id, statuses={Status.PARKED})
        claim = await seen_through(taking, lambda claim: self._checkpoints.give_back(claim, parked))
        try:
            await self._answer(claim, answers or {})
            for child in await self._parked_children(run_id):
                await self.unpark(child)
        except asyncio.CancelledError:
            in_background(self._checkpoints.give_back(claim, parked))
            raise
        except BaseException:
            await self._checkpoints.give_back(claim, parked)
            raise
        # It has its answers. From here on it goes on, if not at once then when the store takes it back.
        await self._checkpoints.give_back(claim, Ending(status=Status.INTERRUPTED))

    async def _parked_children(self, run_id: str) -> list[str]:
        wanted = RunFilter(parent_run_id=run_id, statuses=frozenset({Status.PARKED}))
        return [record.run_id async for record in self._store.records(wanted)]

    async def _answer(self, claim: Claim, answers: Mapping[str, Any]) -> None:
        """Record what became of the calls that the run was parked for. The others are made when it goes on."""
        resumption = await self._resumption(claim)
        state, loop = resumption.state, self._loop(resumption.info.agent_name)
        waiting = [call for call in loop.pending_calls(state.history) if call.call_id not in state.results]
        unknown = set(answers) - {call.call_id for call in waiting}
        if unknown:
            raise CheckpointError(f"run {claim.run_id}: no call waits for the answers {sorted(unknown)}")
        asked = state.notes.pop(IN_DOUBT, ())
        for call in waiting:
            if call.call_id in answers:
                state.results[call.call_id] = loop.told(call, answers[call.call_id])
            elif call.call_id in asked:
                state.results[call.call_id] = loop.told(call, UNKNOWN_OUTCOME, error=True)
        await resumption.checkpointer.save(state, urgent=True)

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
        found = [(place, progress) for place, progress in steps if progress.iteration == at_step]
        if not found:
            known = ", ".join(str(progress.iteration) for _, progress in steps) or "none"
            raise CheckpointError(f"run {run_id} cannot be forked at step {at_step}: its journal has {known}")
        place, progress = found[-1]
        old = decode(stored.entries[0].body, Begin).meta
        labels = {**old.labels, "forked_from": run_id, "forked_at": str(at_step)}
        meta = msgspec.structs.replace(
            old, run_id=new_id or new_run_id(), parent_run_id=None, labels=labels, submitted=True
        )
        await self._store.create(_new_run(meta, progress, list(stored.entries[1 : place + 1])))
        return meta.run_id

    async def checkpoint(self, run_id: str) -> Checkpoint:
        """What is stored of a run. Changes nothing."""
        stored = await self._store.load(run_id)
        return read_checkpoint(stored, self._loop(stored.record.agent_name).codec)

    async def _resumption(self, claim: Claim) -> Resumption:
        stored = await self._store.load(claim.run_id)
        codec = self._loop(stored.record.agent_name).codec
        return self._checkpoints.resume(claim, stored, codec, retention=self._retention)


def _left(claim: Claim) -> Ending:
    return Ending(status=Status.INTERRUPTED, strikes=max(0, claim.strikes - 1))


def _new_run(meta: RunMeta, progress: Progress, entries: list[Entry]) -> NewRun:
    """A queued run: its begin, and what it takes over from another."""
    begin = Entry(seq=0, kind=EntryKind.BEGIN, body=encode(Begin(version=FORMAT_VERSION, meta=meta)))
    taken = [msgspec.structs.replace(entry, seq=number) for number, entry in enumerate(entries, start=1)]
    return NewRun(
        run_id=meta.run_id,
        agent_name=meta.agent_name,
        caller_id=meta.caller_id,
        parent_run_id=meta.parent_run_id,
        meta=encode(meta.head()),
        progress=encode(progress),
        entries=[begin, *taken],
    )
