"""Sends mail to runs from any process: messages, signals, and answers to calls that wait."""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.errors import CheckpointError, RunEnded, RunNotFound, StoreUnavailable
from holdfast.checkpoint.finishing import wake_parents
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import Mail, Receipt, RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import END, RunStore, get_record, iter_runs
from holdfast.clock import Clock
from holdfast.core.errors import DefinitionError, PayloadError
from holdfast.core.json_schema import find_mismatch
from holdfast.core.json_value import JsonValue, to_json_value
from holdfast.core.run.mail import BUDGET_TOPIC, CHILD_TOPIC, ENDED_TOPIC, MESSAGE_TOPIC, encode_message
from holdfast.core.run.waiting import (
    Answer,
    Approve,
    Decision,
    Deny,
    Value,
    WaitingCall,
    read_signed_step,
)
from holdfast.ids import make_id

#: The largest body of a message, a signal or an answer.
MAX_MAIL_BYTES = 4 * 1024 * 1024
#: Characters of the name of a signal.
_MAX_NAME = 200

#: The pauses in seconds while a worker records the token of a call: 12 s in all.
_TOKEN_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 4.0)

_UNFINISHED = frozenset({RunStatus.WAITING, RunStatus.RUNNING, RunStatus.INTERRUPTED, RunStatus.PARKED})


class NotWaiting(CheckpointError):
    """The run has no such waiting call: it never existed, or its wait is over. Nothing was sent.

    What to do: Look at the calls that do wait: `holdfast pending`, or `App.pending`.
    """


class AlreadyAnswered(CheckpointError):
    """Another answer was first. Nothing was changed.

    What to do: Nothing. The message says who answered first, and `show` how the run continued.
    """

    def __init__(self, run_id: str, call_id: str, decision: Decision | None) -> None:
        first = "another answer was first"
        if decision is not None:
            at = f" at {decision.at:%Y-%m-%d %H:%M:%S} UTC" if decision.at is not None else ""
            first = f"{decision.by or 'another caller'} answered first ({decision.kind}){at}"
        super().__init__(f"run {run_id}: {f'call {call_id}' if call_id else 'the call'} was already answered: {first}")
        self.run_id = run_id
        self.call_id = call_id
        self.decision = decision


class Mailer:
    """Posts mail to the runs of one store."""

    def __init__(self, store: RunStore, *, clock: Clock) -> None:
        self._store, self._clock = store, clock

    async def send(self, run_id: str, content: str | list[JsonValue], mail_id: str | None = None) -> str:
        """Send a message to a run that has not ended. Durable when this returns. The run reads it before its next step.

        Returns the id of the message. Sending with an id that the run knows changes nothing.

        Args:
            content: text, or content parts as `dump_prompt` returns them.
        """
        body = encode_message(to_json_value(content, "the message"))
        return await self._post(run_id, MESSAGE_TOPIC, body, mail_id)

    async def signal(self, run_id: str, name: str, payload: Any, mail_id: str | None = None) -> str:
        """Send a signal. A call of `wait_for` with this name returns the payload, also if it comes later."""
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise DefinitionError(f"the name of the signal is {name!r:.80}: give 1 to {_MAX_NAME} characters")
        body = msgspec.json.encode(to_json_value(payload, "the payload"))
        return await self._post(run_id, f"signal:{name}", body, mail_id)

    async def answer(
        self, run_id: str, call_id: str, answer: Answer, *, by: str = "", via: str = "", digest: str | None = None
    ) -> None:
        """Answer a call that waits for a person. Each call is answered once, whichever process was first.

        Raises:
            NotWaiting: no such call waits, or `digest` is of another one. AlreadyAnswered: another answer was first.
        """
        call = await self.find_call(run_id, call_id)
        _check_answer(call, answer)
        if digest is not None and digest != call.digest:
            raise NotWaiting(f"run {run_id}: the shown call {call_id} no longer waits: another call has its id now")
        await self._post_decision(run_id, call_id, call.topic, answer.to_decision(by, via))

    async def complete_call(self, token: str, result: Any) -> str:
        """Give the result of a call whose tool returns `Deferred`, or has returned it. Return the id of its run.

        Raises:
            NotWaiting: the token is not valid, or the wait is over. AlreadyAnswered: there is a result already.
        """
        run_id, topic = await self.check_token(token)
        await self._post_decision(run_id, "", topic, Value(result).to_decision("", "token"))
        return run_id

    async def check_token(self, token: str) -> tuple[str, str]:
        """Return the run of a token, and the topic of the result. Raises `NotWaiting`."""
        run_id, _, secret = token.rpartition("~") if isinstance(token, str) else ("", "", "")
        topic = await self._find_topic(run_id, secret) if secret else ""
        if not topic:
            raise NotWaiting("no call waits for this token: it is not valid, or the call has its result")
        return run_id, topic

    async def _find_topic(self, run_id: str, secret: str) -> str:
        """Return the topic of the result of the call with this token; empty if no call has it.

        The worker that executes the run may be about to record the token: that is waited for. Once it is recorded, a
        later attempt finds the result too.

        Raises:
            StoreUnavailable: it was not recorded in time.
        """
        for pause in _TOKEN_PAUSES:
            record = await self._get_record(run_id)
            if record is None:
                return ""
            progress = decode(record.progress, Progress)
            token = next((each for each in progress.calls.tokens if each.is_of(secret)), None)
            if token is not None:
                wait = progress.calls.waits.get(token.call_id)
                if wait is None or wait.topic != token.topic:
                    return token.topic  # its tool has not returned
                _check_expiry(wait, self._clock.now())
                return token.topic if wait.decision is None else ""
            if record.status is not RunStatus.RUNNING or record.owner is None:
                return ""
            step = read_signed_step(record.owner, run_id, secret)
            if step is None or step <= progress.steps:
                return ""
            await self._clock.sleep(timedelta(seconds=pause))
        raise StoreUnavailable(f"run {run_id} has not recorded this token yet: give the result again later")

    async def list_pending(
        self,
        *,
        agent: str | None = None,
        caller: str | None = None,
        tool: str | None = None,
        older_than: timedelta | None = None,
    ) -> list[WaitingCall]:
        """Return the calls that only `answer` ends and that have no answer, over all runs, oldest run first."""
        before = None if older_than is None else self._clock.now() - older_than
        wanted = RunFilter(statuses=_UNFINISHED, agent_name=agent, caller_id=caller)
        pending: list[WaitingCall] = []
        async for record in iter_runs(self._store, wanted):
            pending += [
                call
                for call in await self._list_unanswered(record)
                if call.needs_answer
                and (tool is None or call.tool == tool)
                and (before is None or call.asked_at <= before)
            ]
        return pending

    async def _list_unanswered(self, record: RunRecord) -> Collection[WaitingCall]:
        """Return the calls of a run that wait and were not answered."""
        calls = _read_record_waits(record)
        if not calls or record.status is RunStatus.WAITING:  # the mail that it waits for would have woken it
            return calls
        try:
            # In this order: an answer that the run reads meanwhile is in the record.
            answered = {mail.topic for mail in (await self._store.load(record.run_id, after=END)).mail}
            calls = _read_record_waits(await get_record(self._store, record.run_id))
        except RunNotFound:  # removed meanwhile
            return ()
        return [call for call in calls if call.topic not in answered]

    async def find_call(self, run_id: str, call_id: str) -> WaitingCall:
        """Return a call that waits for an answer. Raises `NotWaiting` if there is none."""
        record = await get_record(self._store, run_id)
        for call in _read_record_waits(record):
            if call.call_id == call_id and call.kind not in ("signal", "timer", "child", "run"):
                _check_expiry(call, self._clock.now())
                return call
        raise NotWaiting(f"run {run_id} has no call {call_id} that waits for an answer")

    async def _get_record(self, run_id: str) -> RunRecord | None:
        try:
            return await get_record(self._store, run_id)
        except CheckpointError:
            return None

    async def _post_decision(self, run_id: str, call_id: str, topic: str, decision: Decision) -> None:
        body = check_size(msgspec.json.encode(decision))
        receipt = await self._store.post(run_id, Mail(mail_id=topic, topic=topic, body=body))
        # Also for a second answer: the process that gave the first may have died before this.
        await wake_parents(self._store, run_id)
        if not receipt.is_new:
            raise AlreadyAnswered(run_id, call_id, _read_first(receipt))
        if await self._has_expired(run_id, topic):
            raise NotWaiting(f"run {run_id}: the wait of this call has expired: the answer is not used")

    async def _has_expired(self, run_id: str, topic: str) -> bool:
        """Whether a wait was recorded as expired before its answer was posted. Once posted, it prevents that."""
        try:
            calls = decode((await get_record(self._store, run_id)).progress, Progress).calls
            for call in calls.waits.values():
                if call.topic == topic:
                    return call.decision is not None and call.decision.kind == "expire"
            if any(token.topic == topic for token in calls.tokens):
                return False
            # Whether the step has ended without it.
            return any(mail.topic == topic for mail in (await self._store.load(run_id, after=END)).mail)
        except RunNotFound:  # removed meanwhile
            return False

    async def _post(self, run_id: str, topic: str, body: bytes, mail_id: str | None) -> str:
        if mail_id is not None:
            check_mail_id(mail_id)
        mail = Mail(mail_id=mail_id or make_id(), topic=topic, body=check_size(body))
        await self._store.post(run_id, mail)
        await wake_parents(self._store, run_id)
        return mail.mail_id

    async def wake_missed_parents(self) -> None:
        """Notify the parents of children that may continue: a sender may have died between its mail and the notice."""
        async for child in iter_runs(self._store, RunFilter(statuses=frozenset({RunStatus.INTERRUPTED}))):
            above = child.parent_run_id if child.shares_parent_slot else None
            parent = await self._get_record(above) if above is not None else None
            if parent is not None and parent.status is RunStatus.WAITING and CHILD_TOPIC in parent.wake_on:
                await wake_parents(self._store, child.run_id)

    async def wake_over_budget(self) -> None:
        """Resume the runs that wait for their budget: a limit was raised."""
        async for record in iter_runs(self._store, RunFilter(statuses=frozenset({RunStatus.WAITING}))):
            if BUDGET_TOPIC in record.wake_on:
                with suppress(RunEnded, RunNotFound):  # meanwhile
                    await self._post(record.run_id, BUDGET_TOPIC, b"{}", None)


def _read_record_waits(record: RunRecord) -> Collection[WaitingCall]:
    return decode(record.progress, Progress).calls.undecided


def _read_first(receipt: Receipt) -> Decision | None:
    if not receipt.mail.body:
        return None
    first = msgspec.json.decode(receipt.mail.body, type=Decision)
    return msgspec.structs.replace(first, at=receipt.mail.posted_at)


def _check_expiry(call: WaitingCall, now: datetime) -> None:
    if call.expires_at is not None and call.expires_at <= now:
        raise NotWaiting(f"run {call.run_id}: the wait of call {call.call_id} expired at {call.expires_at}")


def _check_answer(call: WaitingCall, answer: Answer) -> None:
    if not isinstance(answer, Approve | Deny | Value):
        raise DefinitionError(f"the answer is {answer!r:.80}: give Approve, Deny or Value")
    if call.kind == "approval" and isinstance(answer, Value):
        raise DefinitionError(f"call {call.call_id} waits for an approval: give Approve or Deny")
    if call.kind != "approval" and isinstance(answer, Approve):
        raise DefinitionError(f"call {call.call_id} waits for a {call.kind}: give Value or Deny")
    if isinstance(answer, Approve) and answer.arguments is not None:
        mismatch = find_mismatch(to_json_value(answer.arguments, "the arguments"), call.schema or {})
        if mismatch:
            raise DefinitionError(f"the arguments do not fit the tool {call.tool}: {mismatch}. Nothing was sent")


def check_mail_id(mail_id: object) -> None:
    """Check the id of a message or a signal.

    Raises:
        DefinitionError: it is not text, is too long, or begins like the ids that holdfast makes.
    """
    if not isinstance(mail_id, str) or not 0 < len(mail_id) <= 200:
        raise DefinitionError(f"the id is {mail_id!r:.80}: give 1 to 200 characters")
    if mail_id.startswith(("answer:", "turn:", ENDED_TOPIC)):
        raise DefinitionError(f"the id is {mail_id!r:.80}: give one that does not begin with answer:, turn: or ended:")


def check_size(body: bytes) -> bytes:
    """Return the body of a mail.

    Raises:
        PayloadError: it is too large.
    """
    if len(body) > MAX_MAIL_BYTES:
        raise PayloadError(f"the mail has {len(body)} bytes: send at most {MAX_MAIL_BYTES}")
    return body
