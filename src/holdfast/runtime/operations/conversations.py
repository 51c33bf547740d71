"""Conversations: sends messages, waits for their turns, reads their history."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, get_args

import msgspec

from holdfast.checkpoint.claims import cancel_run
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.delta import RECENT_TURNS, JournaledTurn, read_turns
from holdfast.checkpoint.errors import (
    ConversationClosed,
    RunBusy,
    RunConflict,
    RunEnded,
    RunNotClaimable,
    RunNotFound,
    TurnConflict,
    TurnNotFound,
)
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import Mail, Receipt, RunRecord, RunStatus
from holdfast.checkpoint.store import END, START, RunStore, get_record
from holdfast.core.agents.agent import AgentSource
from holdfast.core.errors import ConversationBusy, DefinitionError, RunCancelled, RunFailed, TurnFailed
from holdfast.core.execution.native_loop import get_loop
from holdfast.core.loop import Loop
from holdfast.core.run.info import RunInfo, RunOptions
from holdfast.core.run.mail import MESSAGE_TOPIC
from holdfast.core.run.messages import NO_USAGE, Usage
from holdfast.core.run.prompt import Prompt, dump_prompt
from holdfast.core.run.result import OutputT, OutputT_co
from holdfast.core.run.turns import (
    CLOSE_TOPIC,
    INPUT_TOPICS,
    INTERRUPT_TOPIC,
    TURN_TOPIC,
    TurnInput,
    TurnMessage,
    TurnStatus,
    make_conversation_id,
    make_digest,
)
from holdfast.core.run.waiting import BudgetExhausted
from holdfast.core.validation import check_choice
from holdfast.ids import make_id
from holdfast.runtime.operations.forking import copy_turns
from holdfast.runtime.operations.mailing import check_mail_id, check_size
from holdfast.runtime.operations.outcomes import make_parked_error, read_waiting
from holdfast.runtime.operations.store_services import RunHost, StoreServices


@dataclass(frozen=True, kw_only=True)
class Turn(Generic[OutputT_co]):
    """One message to a conversation and what followed."""

    run_id: str
    #: The id of the message that began the turn.
    turn_id: str
    #: Counts up from 1.
    number: int
    status: TurnStatus | Literal["running"]
    #: The beginning of the message.
    prompt: str
    #: Set once the turn is done.
    output: OutputT_co
    #: Why the turn failed or was interrupted; otherwise empty.
    error: str
    #: What this turn alone used, child runs included. Zero while it is running.
    usage: Usage
    steps: int
    began_at: datetime
    ended_at: datetime | None
    #: The messages of this turn, as the agent's loop keeps them. Empty if a later turn compacted the history.
    messages: Sequence[Any]


class TurnReader(Generic[OutputT]):
    """Reads the turns of one conversation."""

    def __init__(self, store: RunStore, run_id: str, loop: "Loop[OutputT]") -> None:
        self._store, self._run_id, self._loop = store, run_id, loop

    async def read_all(self) -> list[Turn[Any]]:
        """Return the turns that have begun, oldest first."""
        stored = await self._store.load(self._run_id)
        return [self._make_turn(turn) for turn in read_turns(self._run_id, stored.entries, self._loop.codec)]

    async def find_ended(self, progress: Progress, turn_id: str, *, scan: bool) -> JournaledTurn | None:
        """Return the turn of a message, if it has ended. For a recent one the journal before it is not read.

        Args:
            scan: read the whole journal for a turn that is not recent.
        """
        seq = progress.recent_turns.get(turn_id)
        if is_present(progress, turn_id) or (seq is None and not scan):
            return None
        stored = await self._store.load(self._run_id, after=START if seq is None else seq - 1)
        turns = read_turns(self._run_id, stored.entries, self._loop.codec)
        ended = (turn for turn in turns if turn.record is not None and turn.record.input.includes(turn_id))
        return next(ended, None)

    def finish(self, turn: JournaledTurn) -> Turn[OutputT]:
        """Return a turn that is done.

        Raises:
            TurnFailed: it ended without an answer.
        """
        if turn.record is not None and turn.record.status != "done":
            raise TurnFailed(self._run_id, turn.input.turn_id, turn.record.error)
        return self._make_turn(turn)

    def _make_turn(self, turn: JournaledTurn) -> Turn[OutputT]:
        began, record = turn.input, turn.record
        output: Any = None
        if record is not None and record.status == "done":
            output = self._loop.load_output(record.output)
        return Turn(
            run_id=self._run_id,
            turn_id=began.turn_id,
            number=began.number,
            status="running" if record is None else record.status,
            prompt=began.prompt,
            output=output,
            error="" if record is None else record.error,
            usage=NO_USAGE if record is None else record.usage,
            steps=0 if record is None else record.steps,
            began_at=began.at,
            ended_at=None if record is None else record.at,
            messages=tuple(turn.messages),
        )


def is_present(progress: Progress, turn_id: str) -> bool:
    """Whether the message belongs to the current turn."""
    return progress.turn is not None and progress.turn.includes(turn_id)


#: What happens to a message that arrives during a turn. `queue`: it begins the next turn. `steer`: it joins the turn
#: before its next step. `interrupt`: it ends the turn before its next step, and begins the next one.
#: `reject`: it is refused.
When = Literal["queue", "steer", "interrupt", "reject"]

_TOPICS = {"queue": TURN_TOPIC, "steer": MESSAGE_TOPIC, "interrupt": INTERRUPT_TOPIC, "reject": TURN_TOPIC}

#: Every conversation has this label, so that listings find them.
CONVERSATION_LABEL = {"holdfast.type": "conversation"}


class Conversation(Generic[OutputT]):
    """One conversation. Made by `RunClient.conversation`; any number of processes may have one with the same key."""

    def __init__(
        self, agent: AgentSource[OutputT], key: str, options: RunOptions, services: StoreServices, host: RunHost
    ) -> None:
        """Make a handle. Nothing is stored before the first message.

        Raises:
            DefinitionError: the key or a label is not text.
        """
        if not isinstance(key, str) or not 0 < len(key) <= 1_000:
            raise DefinitionError(f"the key is {key!r:.80}: give 1 to 1,000 characters")
        self._agent = agent
        self.key = key
        self.run_id: str = make_conversation_id(agent.name, key)
        info = RunInfo.create(agent, "", run_id=self.run_id, **options)
        self._info = msgspec.structs.replace(info, conversation=key, labels={**info.labels, **CONVERSATION_LABEL})
        self._services, self._host, self._store = services, host, services.store
        self._turns = TurnReader(self._store, self.run_id, get_loop(agent))

    def __repr__(self) -> str:
        return f"Conversation({self._agent.name!r}, {self.key!r})"

    # -- sending ------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Put the conversation into the store, unless it is there. `send` and `post` do so too."""
        await self._services.submitter.ensure(self._info)

    def check_message(self, content: Prompt, *, id: str | None = None, when: When = "queue") -> None:
        """Check a message as `send` and `post` do, without sending it. Needs no conversation in the store.

        Raises:
            DefinitionError: the agent does not accept the content, or an argument is not valid.
            PayloadError: the message is too large.
        """
        self._make_mail(content, id, when)

    async def send(self, content: Prompt, *, id: str | None = None, when: When = "queue") -> Turn[OutputT]:
        """Send a message, and wait for the turn that answers it, in whichever process it is executed.

        The message is durable before anything else happens. With an `id` that was sent before, nothing is sent, and the
        turn of that message is returned.

        Args:
            content: text, or content parts that the agent accepts.
            when: what happens to a message that arrives during a turn.

        Raises:
            TurnFailed: the turn ended without an answer, or was interrupted. The conversation continues.
            RunWaiting: the turn waits for a person, a signal or a result. The same `send` returns its result later.
            RunParked: the conversation needs a person. RunCancelled: it was cancelled.
            ConversationBusy: `when="reject"`, and a turn is in progress or queued.
            ConversationClosed: it has ended.
            TurnConflict: the `id` was used for another message.
            RunNotFound, TurnNotFound: the conversation was erased meanwhile.
        """
        return await self._wait(*await self._post(content, id, when))

    async def post(self, content: Prompt, *, id: str | None = None, when: When = "queue") -> str:
        """Send a message, and return its id. Durable when this returns. Arguments and errors as for `send`."""
        return (await self._post(content, id, when))[0]

    async def result(self, turn_id: str) -> Turn[OutputT]:
        """Wait for the turn of a message that was sent. Raises as `send`.

        Raises:
            TurnNotFound: no message has this id.
        """
        return await self._wait(turn_id, None, None)

    async def _post(self, content: Prompt, id: str | None, when: When) -> tuple[str, int | None, datetime | None]:
        """Return what `_wait` takes."""
        mail, digest = self._make_mail(content, id, when)
        turns_before, created_at = 0, None
        while True:
            record = await self._find_record()
            if record is None:
                await self.begin()
            else:
                created_at = record.created_at
                progress = decode(record.progress, Progress)
                if is_present(progress, mail.mail_id) or mail.mail_id in progress.recent_turns:
                    await self._check_digest(progress, mail.mail_id, digest)
                    return mail.mail_id, None, created_at
                if when == "reject" and await self._is_busy(record, progress):
                    raise ConversationBusy(self.run_id)
                turns_before = progress.turns
            try:
                receipt = await self._store.post(self.run_id, mail)
            except RunNotFound:
                continue  # it was erased meanwhile
            except RunEnded as exc:
                raise ConversationClosed(self.run_id, exc.status) from exc
            break
        if not receipt.is_new:
            await self._check_receipt(receipt, digest)
        await self._host.on_posted(self.run_id)
        return mail.mail_id, turns_before if receipt.is_new else None, created_at

    def _make_mail(self, content: Prompt, id: str | None, when: When) -> tuple[Mail, str]:
        check_choice("when", when, get_args(When))
        if id is not None:
            check_mail_id(id)
        prompt = dump_prompt(self._agent.name, get_loop(self._agent), content)
        digest = make_digest(prompt)
        body = check_size(msgspec.json.encode(TurnMessage(content=prompt, digest=digest)))
        return Mail(mail_id=id or make_id(), topic=_TOPICS[when], body=body), digest

    async def _find_record(self) -> RunRecord | None:
        """Return the record; `None` if nothing was sent yet."""
        try:
            record = await get_record(self._store, self.run_id)
        except RunNotFound:
            return None
        if decode(record.info, RunInfo).conversation != self.key or record.agent_name != self._agent.name:
            raise RunConflict(self.run_id, record.agent_name)
        return record

    async def _is_busy(self, record: RunRecord, progress: Progress) -> bool:
        if progress.turn is not None or record.status is RunStatus.WAITING:
            return progress.turn is not None
        return any(mail.topic in INPUT_TOPICS for mail in (await self._store.load(self.run_id, after=END)).mail)

    async def _check_receipt(self, receipt: Receipt, digest: str) -> None:
        """Refuse an id that was used for another message."""
        if receipt.consumed:
            progress = decode((await get_record(self._store, self.run_id)).progress, Progress)
            await self._check_digest(progress, receipt.mail.mail_id, digest)
        elif TurnMessage.from_mail(receipt.mail).digest != digest:
            raise TurnConflict(self.run_id, receipt.mail.mail_id)

    async def _check_digest(self, progress: Progress, turn_id: str, digest: str) -> None:
        turn: TurnInput | None = progress.turn
        if turn is None or not turn.includes(turn_id):
            ended = await self._turns.find_ended(progress, turn_id, scan=True)
            turn = None if ended is None else ended.input
        if turn is not None and turn.get_digest(turn_id) != digest:
            raise TurnConflict(self.run_id, turn_id)

    # -- waiting ------------------------------------------------------------------------------------------------

    async def _wait(self, turn_id: str, turns_before: int | None, created_at: datetime | None) -> Turn[OutputT]:
        """Wait for the end of a turn.

        Args:
            turns_before: that number of turns had ended, and this was not among them. `None`: it may have been.
            created_at: of the conversation that has the message. `None`: unknown.

        Raises:
            TurnNotFound: that conversation was erased, and there is another one with its key.
        """
        error: Exception | None = None
        with self._services.changes.listen() as changed:
            while True:
                record = await get_record(self._store, self.run_id)
                if record.created_at != created_at:
                    created_at, turns_before = record.created_at, await self._count_turns_before(turn_id)
                progress = decode(record.progress, Progress)
                missed = turns_before is None or progress.turns - turns_before > RECENT_TURNS
                turn = await self._turns.find_ended(progress, turn_id, scan=missed)
                if turn is not None:
                    return self._turns.finish(turn)
                self._raise_if_stuck(record)
                if error is not None and progress.turns == turns_before:  # it is not the error of a turn
                    raise error
                turns_before = progress.turns
                error = await self._host.advance(record, changed)

    async def _count_turns_before(self, turn_id: str) -> int | None:
        """Return how many turns have ended; `None` if that of this message is one of them."""
        # Before the record: a message that is read meanwhile is in the record.
        unread = [mail.mail_id for mail in (await self._store.load(self.run_id, after=END)).mail]
        progress = decode((await get_record(self._store, self.run_id)).progress, Progress)
        if turn_id in unread or is_present(progress, turn_id):
            return progress.turns
        if await self._turns.find_ended(progress, turn_id, scan=True) is None:
            raise TurnNotFound(self.run_id, turn_id)
        return None

    def _raise_if_stuck(self, record: RunRecord) -> None:
        """Raise if the conversation does not continue by itself."""
        match record.status:
            case RunStatus.WAITING:
                waiting = read_waiting(record)
                if isinstance(waiting, BudgetExhausted) or (waiting.calls and not waiting.only_for_time):
                    raise waiting
            case RunStatus.PARKED:
                raise make_parked_error(record)
            case RunStatus.CANCELLED:
                raise RunCancelled(f"conversation {self.run_id} was cancelled")
            case RunStatus.FAILED:
                raise RunFailed(self.run_id, record.reason)
            case RunStatus.DONE:
                raise ConversationClosed(self.run_id, record.status.value)

    # -- the whole conversation ---------------------------------------------------------------------------------

    async def history(self) -> list[Turn[Any]]:
        """Return the turns that have begun, oldest first. Empty if nothing was sent."""
        if await self._find_record() is None:
            return []
        return await self._turns.read_all()

    async def fork(
        self, at_turn: int, *, edited: Prompt | None = None, key: str | None = None
    ) -> "Conversation[OutputT]":
        """Begin a new conversation with the turns of this one up to `at_turn`. This one is not changed.

        May be repeated with the same arguments and `key`.

        Args:
            edited: replaces the message of that turn, which is run again under the same turn id: wait for it with
                `result(turn_id)`.
            key: the key of the new conversation; random by default.

        Raises:
            CheckpointError: the journal has no such turn, or it was compacted.
            RunConflict: the key belongs to a conversation that is not this fork.
        """
        new_key = make_id() if key is None else key
        fork = Conversation(self._agent, new_key, self._info.inherited_options, self._services, self._host)
        if edited is not None:  # before the fork is in the store
            fork.check_message(edited)
        turn_id = await copy_turns(self._store, self.run_id, fork._info, at_turn, include=edited is None)
        if edited is not None:
            await fork.post(edited, id=turn_id)
        return fork

    async def close(self) -> None:
        """End the conversation after the messages that were sent, and wait for that. Later ones are refused.

        Raises:
            RunWaiting, RunParked: the current turn does not continue by itself.
        """
        mail = Mail(mail_id=CLOSE_TOPIC, topic=CLOSE_TOPIC, body=b"{}")
        if await self._find_record() is None:
            return
        with suppress(RunEnded):
            await self._store.post(self.run_id, mail)
        await self._host.on_posted(self.run_id)
        # Without a retention it is removed when it ends.
        with self._services.changes.listen() as changed:
            while (record := await self._find_record()) is not None and not record.is_terminal:
                self._raise_if_stuck(record)
                await self._host.advance(record, changed)

    async def erase(self) -> None:
        """Remove the conversation from the store: its history, its results and the runs that it started.

        A turn in progress is cancelled first. When this returns, the database has its bytes in free pages only.
        """
        with self._services.changes.listen() as changed:
            while True:
                try:
                    return await self._store.remove(self.run_id, erase=True)
                except RunBusy:
                    with suppress(RunNotFound, RunNotClaimable):
                        await cancel_run(await self._services.get_claims(), self.run_id)
                    await changed.wait(timedelta(milliseconds=100))
