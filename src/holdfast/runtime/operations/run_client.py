"""Operations on stored runs from any process: submit, await, cancel, unpark, fork."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from holdfast.checkpoint.claims import cancel_run, make_cancelled_release
from holdfast.checkpoint.codec import Begin, DecodedRun, decode, decode_run, encode, encode_begin
from holdfast.checkpoint.errors import (
    CheckpointError,
    RunBusy,
    RunConflict,
    RunExists,
    RunNotClaimable,
    RunNotFound,
)
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import CLAIMABLE_STATUSES, NewRun, Release, RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import RunStore, get_record, iter_runs
from holdfast.checkpoint.workers import Claim
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import RunCancelled, RunFailed, RunParked
from holdfast.core.execution.native_loop import NATIVE_LOOP, get_loop
from holdfast.core.execution.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.json_value import JsonValue
from holdfast.core.loop import Loop
from holdfast.core.ports import Resumption
from holdfast.core.run.info import RunInfo
from holdfast.core.run.prompt import Prompt, dump_prompt, make_request_digest
from holdfast.core.run.result import Result
from holdfast.core.run.turns import TURN_TOPIC, ConversationIdle
from holdfast.core.run.waiting import RunWaiting
from holdfast.core.validation import check_labels, to_utc
from holdfast.runtime.agent_registry import find_agent
from holdfast.runtime.changes import ChangeSignal
from holdfast.runtime.operations.forking import Fork, make_start
from holdfast.stores.redacting import stored_info


class RunClient:
    """Operates on the runs of one store, in whichever process they are executed."""

    def __init__(self, checkpoints: StoreCheckpoints, agents: Mapping[str, AgentSource], changes: ChangeSignal) -> None:
        """Make a client.

        Args:
            agents: by name. Their codecs decode transcripts and results.
        """
        self._checkpoints, self._agents, self.changes = checkpoints, agents, changes
        self.store: RunStore = checkpoints.store
        self._store = self.store

    def _loop_for(self, agent_name: str) -> Loop:
        agent = self._agents.get(agent_name)
        return get_loop(agent) if agent is not None else NATIVE_LOOP

    async def get_record(self, run_id: str) -> RunRecord:
        """Return the record of the run, without its journal."""
        return await get_record(self._store, run_id)

    async def dump_message(self, run_id: str, content: Prompt) -> str | list[JsonValue]:
        """Return a message to a run as plain data. Only the agent of the run knows which content parts it accepts.

        Raises:
            DefinitionError: there is no such agent here, or it does not accept the parts.
        """
        if isinstance(content, str):
            return content
        agent_name = (await self.get_record(run_id)).agent_name
        return dump_prompt(agent_name, get_loop(find_agent(self._agents, agent_name)), content)

    async def submit(
        self,
        info: RunInfo,
        not_before: datetime | None = None,
        connection: Any = None,
        *,
        port_data: Mapping[str, Any] | None = None,
    ) -> str:
        """Queue a run for any worker. Durable when this returns. Idempotent for the same id, agent and input.

        Args:
            not_before: workers leave the run alone until then.
            connection: of the user to the store's database: the run exists only if its transaction commits.
            port_data: of ports, such as the trace context of the caller.

        Raises:
            RunConflict: a run with this id has another agent, prompt or inputs.
            DefinitionError: `not_before` is not a time that stores can keep, or a label is one of holdfast's own.
        """
        check_labels(info.labels)
        if not_before is not None:
            not_before = to_utc("not_before", not_before)
        progress = Progress(port_data=dict(port_data or {}))
        new = make_queued_run(info, progress, [], not_before)
        if connection is not None:
            await self._submit_within(connection, new, info)
            return info.run_id
        while True:
            try:
                await self._store.create(new)
            except RunExists:
                try:
                    await self.get_same_request(info)
                except RunNotFound:
                    continue  # it was removed meanwhile
            return info.run_id

    async def _submit_within(self, connection: Any, new: NewRun, info: RunInfo) -> None:
        try:
            await self._store.create(new, connection=connection)
        except RunExists as exc:
            # The other run may not be committed: it cannot be loaded.
            if exc.begin is not None and not self.is_same_request(info, known := decode(exc.begin, Begin).info):
                raise RunConflict(info.run_id, known.agent_name) from exc

    async def create(self, info: RunInfo) -> None:
        """Queue a run unless there is one with this id."""
        with suppress(RunExists):
            await self._store.create(make_queued_run(info, Progress(), []))

    async def get_same_request(self, info: RunInfo) -> RunRecord:
        """Return the record of the run with this id, if it has the same agent, prompt and inputs.

        Raises:
            RunConflict: it has another agent, prompt or inputs. RunNotFound: there is none.
        """
        record = await self.get_record(info.run_id)
        known = decode(record.info, RunInfo)
        if not known.request_digest:  # it was submitted by SQL
            known = decode((await self._store.load(info.run_id)).entries[0].body, Begin).info
        if not self.is_same_request(info, known):
            raise RunConflict(info.run_id, known.agent_name)
        return record

    def is_same_request(self, info: RunInfo, known: RunInfo) -> bool:
        """Whether `info` has the agent, prompt and inputs of the run `known`, which may be redacted."""
        if (known.agent_name, known.conversation) != (info.agent_name, info.conversation):
            return False
        asked = stored_info(self._store, info)
        digest = known.request_digest or make_request_digest(known.prompt, known.inputs)
        return digest in (make_request_digest(each.prompt, each.inputs) for each in (info, asked))

    async def result(self, run_id: str, *, through_waits: bool = False) -> Result:
        """Wait for the result of a run, in whichever process it is executed.

        Args:
            through_waits: keep waiting while the run waits for a person, a signal or a result from outside.

        Raises:
            RunNotFound: there is no such run, or its retention has passed.
            RunFailed: it failed. RunCancelled: it was cancelled. RunParked: it needs a person.
            RunWaiting: it waits for a person, a signal or a result from outside.
        """
        with self.changes.listen() as changed:
            while not is_settled(record := await self.get_record(run_id)):
                if not through_waits:
                    self.raise_if_waiting(record)
                await changed.wait()
        return self.read_result(await self._store.load(run_id))

    def read_waiting(self, record: RunRecord) -> RunWaiting:
        """Return what a waiting run waits for, as an error."""
        calls = decode(record.progress, Progress).calls.undecided
        if not calls and TURN_TOPIC in record.wake_on:
            return ConversationIdle(record.run_id)
        return RunWaiting(record.run_id, calls)

    def raise_if_waiting(self, record: RunRecord) -> None:
        """Raise `RunWaiting` if the run waits for more than a time."""
        if record.status is RunStatus.WAITING and not (waiting := self.read_waiting(record)).only_for_time:
            raise waiting

    def read_result(self, stored: StoredRun) -> Result:
        """Return the result of a settled run. Raises as `result` does."""
        run_id = stored.record.run_id
        if stored.record.status is RunStatus.PARKED:
            raise make_parked_error(stored.record)
        loop = self._loop_for(stored.record.agent_name)
        checkpoint = decode_run(stored, loop.codec)
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
        """Cancel a run without a live owner, or ask its owner to. Its unfinished child runs are cancelled first.

        Raises:
            RunNotFound: there is no such run. RunNotClaimable: it is terminal already.
        """
        await cancel_run(self._checkpoints.claims, run_id)

    async def reclaim_after_cancel(self, claim: Claim) -> tuple[Claim, Release]:
        """Claim a run again that a person resumes despite a pending cancel request: record the cancel first.

        Returns the new claim, and the release that undoes it.
        """
        retention = self._checkpoints.settings.retention
        cancelled = make_cancelled_release("cancelled before it was resumed", retention)
        await self._store.release(claim, cancelled)
        claims = self._checkpoints.claims
        return await claims.claim_with_status(claim.run_id, RunStatus.CANCELLED, cancelled), cancelled

    async def unpark(self, run_id: str, resolutions: Mapping[str, Any] | None = None) -> None:
        """Make a parked run interrupted and clear its strikes: recovery resumes it.

        Its parked children are unparked with it. To resolve their calls, unpark them first.

        Args:
            resolutions: outcomes of calls in doubt, by call id. The model reads that the outcome of the others is
                unknown.

        Raises:
            RunNotFound: there is no such run. RunNotClaimable: it is not parked. RunBusy: another process unparks it.
            CheckpointError: a resolution is for a call that is not pending.
        """
        parked = Release(status=RunStatus.PARKED, reason=(await self.get_record(run_id)).reason)
        claims = self._checkpoints.claims
        with claims.use():
            claim = await claims.claim_with_status(run_id, RunStatus.PARKED, parked)
            try:
                await self._record_resolutions(claim, resolutions or {})
                for child in await self._list_parked_children(run_id):
                    await self.unpark(child)
            except asyncio.CancelledError:
                claims.start(claims.release_claim(claim, parked))
                raise
            except BaseException:
                await claims.release_claim(claim, parked)
                raise
            # The resolutions are saved. If this release fails, it is retried.
            await claims.release_claim(claim, Release(status=RunStatus.INTERRUPTED))

    async def requeue(self, run_id: str) -> None:
        """Make a parked, failed or cancelled run interrupted, durably: a worker resumes it after its last good step.

        Raises:
            RunNotFound: there is no such run. RunBusy: a live worker owns it.
            RunNotClaimable: it is done, or waits for a time or for mail.
        """
        record = await self.get_record(run_id)
        if record.status is RunStatus.PARKED:
            return await self.unpark(run_id)
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
            if record.cancel_requested:
                claim, _ = await self.reclaim_after_cancel(claim)
            return await claims.release_claim(claim, due)

    async def _list_parked_children(self, run_id: str) -> list[str]:
        wanted = RunFilter(parent_run_id=run_id, statuses=frozenset({RunStatus.PARKED}))
        return [record.run_id async for record in iter_runs(self._store, wanted)]

    async def _record_resolutions(self, claim: Claim, resolutions: Mapping[str, Any]) -> None:
        """Save the outcomes of the calls in doubt. Other pending calls are made when the run resumes."""
        resumption = await self._prepare(claim)
        state, loop = resumption.state, self._loop_for(resumption.info.agent_name)
        pending = [call for call in loop.pending_calls(state.history) if call.call_id not in state.results]
        unknown = set(resolutions) - {call.call_id for call in pending}
        if unknown:
            raise CheckpointError(f"run {claim.run_id}: no pending call has the id {', '.join(sorted(unknown))}")
        in_doubt = state.calls.in_doubt
        state.calls = msgspec.structs.replace(state.calls, in_doubt=())
        for call in pending:
            if call.call_id in resolutions:
                state.results[call.call_id] = loop.make_result(call, resolutions[call.call_id])
            elif call.call_id in in_doubt:
                state.results[call.call_id] = loop.make_result(call, UNKNOWN_OUTCOME, error=True)
        await resumption.checkpointer.save(state, force=True)

    async def fork(self, run_id: str, fork: Fork) -> str:
        """Queue a new run that starts from the state of `run_id` at a step. The old run is not changed.

        Returns its id.

        Raises:
            CheckpointError: the journal has no such call, or no such step: not reached, saved together with a later
                one, or compacted.
            DefinitionError: the agent does not accept the edited message.
            RunExists: there is a run with the new id.
        """
        stored = await self._store.load(run_id)
        start = make_start(stored, self._loop_for(stored.record.agent_name), fork)
        await self._store.create(make_queued_run(start.info, start.progress, start.entries))
        return start.info.run_id

    async def load_checkpoint(self, run_id: str) -> DecodedRun:
        """Read the checkpoint of a run. Changes nothing."""
        stored = await self._store.load(run_id)
        return decode_run(stored, self._loop_for(stored.record.agent_name).codec)

    async def _prepare(self, claim: Claim) -> Resumption:
        stored = await self._store.load(claim.run_id)
        codec = self._loop_for(stored.record.agent_name).codec
        return self._checkpoints.resume(claim, stored, codec, executes=False)


def is_settled(record: RunRecord) -> bool:
    """Whether the run has ended, or waits for a person: `RunClient.read_result` tells which."""
    return record.is_terminal or record.status is RunStatus.PARKED


def make_parked_error(record: RunRecord) -> RunParked:
    """Return the error that says why a run is parked."""
    reason, _, detail = record.reason.partition(": ")
    return RunParked(reason, detail)


def make_queued_run(
    info: RunInfo, progress: Progress, entries: list[Entry], not_before: datetime | None = None
) -> NewRun:
    """Make a queued run from its first entry and the copied `entries` of another run."""
    begin = Entry(seq=0, kind=EntryKind.BEGIN, body=encode_begin(info))
    copied = [msgspec.structs.replace(entry, seq=number) for number, entry in enumerate(entries, start=1)]
    return NewRun.create(info, encode(progress), [begin, *copied], not_before)
