"""Makes forks: runs that start from a copy of another run's journal up to a step, or up to a turn."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.checkpoint.codec import Begin, JournalReader, RecordedResult, Step, decode, encode
from holdfast.checkpoint.delta import index_turns
from holdfast.checkpoint.errors import CheckpointError, RunConflict, RunExists
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import StoredRun
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.core.errors import DefinitionError
from holdfast.core.loop import Loop, PendingCall
from holdfast.core.run.info import RunInfo
from holdfast.core.run.prompt import Prompt, dump_prompt
from holdfast.core.run.turns import TurnInput, TurnRecord
from holdfast.ids import make_id
from holdfast.runtime.operations.submitting import make_queued_run


class Fork(msgspec.Struct, frozen=True, kw_only=True):
    """Where a fork begins, and what is different in it."""

    at_step: int
    #: The id of the new run. `None`: a random one.
    new_id: str | None = None
    #: Replaces the prompt, if `at_step` is 1, or the messages that the run got before this step. The step is run again.
    edited: Prompt | None = None
    #: Replace results of the step's calls, by call id. The new run starts after the step.
    results: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        if self.edited is not None and self.results:
            raise DefinitionError("give an edited message or edited results, not both: fork twice for both")


class ForkStart(NamedTuple):
    """What a fork begins with. The entries follow its first one; they are numbered when the run is made."""

    info: RunInfo
    progress: Progress
    entries: list[Entry]


def make_start(stored: StoredRun, loop: Loop, fork: Fork) -> ForkStart:
    """Return what the fork of a run begins with.

    Raises:
        CheckpointError: the journal has no such step or call.
        DefinitionError: the agent does not accept the message. PayloadError: a result has no JSON form.
    """
    return _Forker(stored, loop, fork).make()


class _Forker:
    def __init__(self, stored: StoredRun, loop: Loop, fork: Fork) -> None:
        self._entries, self._loop, self._fork = stored.entries, loop, fork
        self._old = decode(stored.entries[0].body, Begin).info
        if self._old.conversation:
            raise CheckpointError(
                f"run {self._old.run_id} is a conversation: fork it at a turn, with Conversation.fork"
            )

    def make(self) -> ForkStart:
        at_step = self._fork.at_step
        new_id = self._fork.new_id or make_id()
        info = msgspec.structs.replace(
            self._old,
            run_id=new_id,
            parent_run_id=None,
            background=False,
            started_by=None,
            forked_from=self._old.run_id,
            forked_at=at_step,
        )
        if self._fork.edited is not None:
            return self._make_with_message(info, self._fork.edited)
        end, progress = self._find_step(at_step)
        if self._fork.results:
            return self._make_with_results(info, end, progress)
        return ForkStart(info, progress, list(self._entries[1 : end + 1]))

    def _find_step(self, step: int) -> tuple[int, Progress]:
        """Return the position of the end of a step, and the progress then."""
        steps = [
            (position, decode(entry.body, Step).progress)
            for position, entry in enumerate(self._entries)
            if entry.kind is EntryKind.STEP
        ]
        for position, progress in reversed(steps):
            if progress.steps == step:
                return position, progress
        known = ", ".join(str(progress.steps) for _, progress in steps) or "none"
        raise CheckpointError(
            f"run {self._old.run_id} cannot be forked at step {self._fork.at_step}: its journal has {known}"
        )

    # -- an edited message --------------------------------------------------------------------------------------

    def _make_with_message(self, info: RunInfo, edited: Prompt) -> ForkStart:
        content = dump_prompt(info.agent_name, self._loop, edited)
        if self._fork.at_step == 1:
            info = msgspec.structs.replace(info, prompt=content)
            return ForkStart(info, Progress(), [])
        end, progress = self._find_step(self._fork.at_step - 1)
        self._check_same_phase(end)
        body = self._loop.codec.encode(self._loop.make_message(content))
        message = Entry(seq=0, kind=EntryKind.MESSAGE, body=body)
        return ForkStart(info, progress, [*self._entries[1 : end + 1], message])

    def _check_same_phase(self, end: int) -> None:
        following = self._entries[end + 1 : end + 2]
        if following and following[0].kind is EntryKind.PHASE:
            raise CheckpointError(
                f"run {self._old.run_id}: step {self._fork.at_step} begins a phase, whose prompt its agent makes: "
                "edit the message of another step"
            )

    # -- edited results -----------------------------------------------------------------------------------------

    def _make_with_results(self, info: RunInfo, end: int, progress: Progress) -> ForkStart:
        """Copy the journal up to the reply that made the calls. The results follow, as if the calls had just ended."""
        cut, calls, results = self._find_results(end)
        for call_id, content in self._fork.results.items():
            results[call_id] = self._loop.make_result(calls[call_id], content)
        progress = msgspec.structs.replace(progress, steps=progress.steps - 1)
        recorded = [
            encode(
                RecordedResult(call=each, steps=progress.steps, message=msgspec.Raw(self._loop.codec.encode(result)))
            )
            for each, result in results.items()
        ]
        entries = [Entry(seq=0, kind=EntryKind.RESULT, body=body) for body in recorded]
        return ForkStart(info, progress, [*self._entries[1 : cut + 1], *entries])

    def _find_results(self, end: int) -> tuple[int, Mapping[str, PendingCall], dict[str, Any]]:
        """Return the position of the reply, and by id its calls and their results as the loop has recorded them."""
        reader = JournalReader(self._old.run_id, self._loop.codec)
        start = max((at for at in range(end) if self._entries[at].kind is EntryKind.STEP), default=0)
        asked: list[Any] | None = None
        calls: dict[str, PendingCall] = {}
        cut = end
        for position, entry in enumerate(self._entries[:end]):
            reader.read(entry)
            if position >= start and asked is None:
                calls = {call.call_id: call for call in self._loop.pending_calls(reader.messages)}
                if calls:
                    asked, cut = list(reader.messages), position
        results = self._read_results(asked or [], reader.messages)
        if missing := self._fork.results.keys() - results.keys():
            raise CheckpointError(
                f"run {self._old.run_id}: step {self._fork.at_step} has no result of {', '.join(sorted(missing))}; "
                f"it has results of {', '.join(results) or 'no call'}"
            )
        return cut, calls, results

    def _read_results(self, asked: list[Any], messages: Sequence[Any]) -> dict[str, Any]:
        """Return the messages after `asked` that are results of its last calls, by call id."""
        before = len(self._loop.finished_calls(asked))
        results: dict[str, Any] = {}
        for message in messages[len(asked) :]:
            finished = self._loop.finished_calls([*asked, message])
            if len(finished) > before:
                results[finished[-1].call_id] = message
        return results


# -- conversations -----------------------------------------------------------------------------------------------


async def copy_turns(store: RunStore, source: str, info: RunInfo, at_turn: int, *, include: bool) -> str:
    """Queue a new conversation with the turns of `source` up to `at_turn`. Return the id of that turn.

    Does nothing if it was made before.

    Args:
        info: of the new conversation.
        include: copy `at_turn` too, not only the turns before it.

    Raises:
        CheckpointError: the journal has no such turn, or it was compacted.
        RunConflict: there is another run with the id of the new one.
    """
    stored = await store.load(source)
    turn_id, entries = _cut(source, stored.entries, at_turn, include=include)
    old = decode(stored.entries[0].body, Begin).info
    labels = {**old.labels, **info.labels}
    info = msgspec.structs.replace(info, labels=labels, forked_from=source, forked_at=at_turn)
    try:
        await store.create(make_queued_run(info, _make_progress(entries), entries))
    except RunExists:
        known = decode((await get_record(store, info.run_id)).info, RunInfo)
        if (known.forked_from, known.forked_at) != (source, at_turn):
            raise RunConflict(info.run_id, known.agent_name) from None
    return turn_id


def _cut(run_id: str, entries: Sequence[Entry], at_turn: int, *, include: bool) -> tuple[str, list[Entry]]:
    """Return the id of the turn, and the entries up to its end or its beginning, without the first one."""
    begun: set[int] = set()
    for position, entry in enumerate(entries):
        if entry.kind is EntryKind.INPUT:
            turn = decode(entry.body, TurnInput)
            begun.add(turn.number)
            if turn.number == at_turn and not include and not turn.compacted:
                return turn.turn_id, list(entries[1:position])
        elif entry.kind is EntryKind.TURN:
            turn = decode(entry.body, TurnRecord).input
            if turn.number == at_turn and include and at_turn in begun:
                return turn.turn_id, list(entries[1 : position + 1])
    known = ", ".join(map(str, sorted(begun))) or "none"
    raise CheckpointError(f"conversation {run_id} cannot be forked at turn {at_turn}: its journal has {known}")


def _make_progress(entries: Sequence[Entry]) -> Progress:
    """Return the progress of a conversation with these entries."""
    steps = [entry.body for entry in entries if entry.kind is EntryKind.STEP]
    progress = decode(steps[-1], Step).progress if steps else Progress()
    turns = sum(entry.kind is EntryKind.TURN for entry in entries)
    return msgspec.structs.replace(progress, turns=turns, turn=None, recent_turns=index_turns(entries, first_seq=1))
