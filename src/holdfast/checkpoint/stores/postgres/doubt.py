"""Writes whose callers were told that the server did not answer, though it turned out later that they were committed.

To those callers nothing was changed, and they may make the same call again. So what can be undone is undone: runs that
were begun or taken are given back. What cannot is remembered until its caller comes again. So are runs that were
submitted: somebody else may have been told meanwhile that they are there.
"""

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeGuard

from msgspec import structs

from holdfast.checkpoint.lifecycle import ENDINGS
from holdfast.checkpoint.stores.postgres.operations import Answer, Append, Operation, Other
from holdfast.checkpoint.stores.postgres.text import from_text

_FINE: Answer = {}


class LateCommits:
    """What is known of such writes."""

    def __init__(self) -> None:
        #: The newest of each claim, by its token.
        self._newest: dict[int, Operation] = {}
        #: Those that submitted a run, by its id.
        self._submitted: dict[str | None, Other] = {}
        #: What gives back the runs that nobody knows to be his.
        self.undoing: list[Other] = []

    def learn(self, operations: Sequence[Operation], answers: Mapping[int, Answer]) -> None:
        """These were committed, with these answers by item."""
        for item, operation in enumerate(operations, 1):
            answer = answers.get(item) or {}
            if operation in self.undoing:
                self.undoing.remove(operation)
            elif "error" in answer:
                continue
            elif _submits(operation):
                self._submitted[operation.run_id] = operation
            elif isinstance(operation, Other) and operation.do in ("create", "claim", "take"):
                self.undoing += _undo(operation, answer)
            elif operation.token is not None and _says_something(operation):
                self._newest[operation.token] = operation

    def __bool__(self) -> bool:
        return bool(self._newest or self._submitted)

    def adapt(self, operation: Operation) -> bool:
        """Make the operation fit what is there already. True: nothing is left to be done for it."""
        late = self._newest.get(operation.token) if operation.token is not None else None
        if isinstance(late, Other) and isinstance(operation, Other):
            return (late.do, *_ending(late)) == (operation.do, *_ending(operation))
        if isinstance(late, Append) and late.first == operation.first:
            _put_in_place_of(late, operation)
        return False

    def conclude(self, operations: Sequence[Operation], answers: MutableMapping[Operation, Answer]) -> None:
        """These were committed with these answers, and their callers are about to know."""
        for operation in operations:
            if isinstance(operation, Other) and operation.ahead is not None:
                answers.pop(operation.ahead, None)  # its own says the same
            if operation.token is not None:
                if _says_something(operation) and answers.get(operation, _FINE).get("error") != "order":
                    self._newest.pop(operation.token, None)
            elif _submits(operation) and _is_same(self._submitted.get(operation.run_id), operation):
                del self._submitted[operation.run_id]
                answers.pop(operation, None)  # that there is such a run already: it is this one


def _says_something(operation: Operation) -> bool:
    """Not only that its claim still holds."""
    return operation.first is not None or isinstance(operation, Other)


def _put_in_place_of(late: Append, operation: Operation) -> None:
    """Make an operation fit whose first entry has the number that the first of the late one had."""
    if operation.first is None:
        return
    count = len(late.entries)
    if isinstance(operation, Append):
        # What a rewrite replaced may be gone already, so that only another rewrite can follow in its place.
        if operation.replace or not late.replace:
            operation.rewind = operation.first + count
            operation.rewound_size = 0 if operation.replace else late.size
    elif isinstance(operation, Other):  # the run's end
        if late.replace:
            operation.entries = [structs.replace(entry, seq=entry.seq + count) for entry in operation.entries]
            operation.first += count
        else:
            operation.append_ahead(rewind=operation.first + count, rewound_size=late.size, progress=late.progress)


def _submits(operation: Operation | None) -> TypeGuard[Other]:
    return isinstance(operation, Other) and operation.do == "create" and operation.about["worker_id"] is None


def _is_same(late: Other | None, operation: Other) -> bool:
    return late is not None and (late.about, late.entries) == (operation.about, operation.entries)


def _ending(operation: Other) -> tuple[Any, Any]:
    """How a run was left; nothing if it was removed."""
    return operation.about.get("status"), operation.about.get("reason")


def _undo(operation: Other, answer: Answer) -> list[Other]:
    if operation.do == "create":
        return [Other("remove", operation.run_id, {}, token=answer["token"])]
    taken = answer["taken"] if operation.do == "take" else [answer]
    return [
        Other(
            "settle",
            from_text(claim["run_id"]),
            {
                "status": claim["was"] if claim.get("was") in ENDINGS else "interrupted",
                "reason": claim.get("reason", ""),
                "strikes": claim["strikes"] - 1,
                "delay": 0,
                "keep": operation.about.get("keep"),
            },
            token=claim["token"],
        )
        for claim in taken
    ]
