"""What a journal tells about the calls that were made."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.codec import Progress, RecordedResult, Step, decode
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.run.drive import UNKNOWN_OUTCOME
from holdfast.run.message import NATIVE_CODEC, Reply, ToolResult
from holdfast.testing.crash.instrument import conversation_key

#: A call within its run: the step, and the call's id, which a later step may use again.
Call = tuple[int, str]


def message_of(body: bytes) -> Any:
    """A message of the native loop; `None` for one of another loop."""
    try:
        return NATIVE_CODEC.decode(body)
    except Exception:  # whatever a foreign message looks like, it is none of ours
        return None


def conversations(entries: Sequence[Entry]) -> list[list[bytes]]:
    """The messages of a run in their order, for each of its phases."""
    told: list[list[bytes]] = [[]]
    results: dict[str, bytes] = {}
    for entry in entries:
        if entry.kind is EntryKind.MESSAGE:
            told[-1].append(entry.body)
        elif entry.kind is EntryKind.RESULT:
            recorded = decode(entry.body, RecordedResult)
            results[recorded.call] = bytes(recorded.message)
        elif entry.kind is EntryKind.ADOPT:
            told[-1].extend(results[call] for call in decode(entry.body, list[str]))
        elif entry.kind is EntryKind.PHASE:
            told.append([])
    return told


def recorded_results(entries: Sequence[Entry], steps: int = 0) -> dict[Call, bytes]:
    """The results that are in a journal of the native loop.

    Args:
        steps: how many steps are finished, if that is known: a rewritten journal does not tell.
    """
    results: dict[Call, bytes] = {}
    group: list[tuple[Any, bytes]] = []
    step = 0
    for entry in entries:
        if entry.kind is EntryKind.RESULT:
            recorded = decode(entry.body, RecordedResult)
            results[recorded.iteration + 1, recorded.call] = bytes(recorded.message)
        elif entry.kind is EntryKind.MESSAGE:
            group.append((message_of(entry.body), entry.body))
        elif entry.kind is EntryKind.STEP:
            step = decode(bytes(decode(entry.body, Step).progress), Progress).iteration
            results.update(_results(group, step))
            group = []
    results.update(_results(group, max(step, steps) + 1))
    return results


def _results(group: Sequence[tuple[Any, bytes]], step: int) -> dict[Call, bytes]:
    """The results among messages that end with this step: each belongs to the last reply before it."""
    step -= sum(isinstance(message, Reply) for message, _ in group)
    results: dict[Call, bytes] = {}
    for message, body in group:
        step += isinstance(message, Reply)
        if isinstance(message, ToolResult):
            results[step, message.call_id] = body
    return results


def recorded_replies(run_id: str, entries: Sequence[Entry]) -> Counter[str]:
    """The model calls of the native loop whose replies are in the journal, by their keys."""
    keys: Counter[str] = Counter()
    for conversation in conversations(entries):
        for place, body in enumerate(conversation):
            if isinstance(message_of(body), Reply):
                keys[conversation_key(run_id, conversation[:place])] += 1
    return keys


def is_answer_to(body: bytes, call_id: str) -> bool:
    """Whether a message holds the result of the call."""
    message = message_of(body)
    return message.call_id == call_id if isinstance(message, ToolResult) else message is None and call_id in str(body)


def tells_doubt(body: bytes) -> bool:
    """Whether a message tells the model that the outcome of a call is unknown."""
    return UNKNOWN_OUTCOME.encode() in body
