"""Counts what was lost and what was repeated, from the ledger and from the store's content after each attempt."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from holdfast.checkpoint.codec import Progress, decode
from holdfast.checkpoint.record import StoredRun
from holdfast.cli.demo.agent import LedgerEntry, expected_answer
from holdfast.runtime.transcript import Transcript


class StoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The stored run between two attempts."""

    steps: int
    #: Checksums of the journal's entries, by number.
    entries: dict[int, int]
    #: Ids of calls with a recorded result.
    recorded: frozenset[str]
    unanswered: frozenset[str]
    replies: int
    output: str | None

    @classmethod
    def from_stored(cls, stored: StoredRun) -> "StoreSnapshot":
        transcript = Transcript()
        items = transcript.read(stored.entries)
        recorded = frozenset(call.call_id for call in transcript.calls if call.state == "done")
        outcome = [item for item in items if item.kind == "outcome" and not item.error]
        return cls(
            steps=decode(stored.record.progress, Progress).steps,
            entries={entry.seq: entry.checksum() for entry in stored.entries},
            recorded=recorded,
            unanswered=frozenset(call.call_id for call in transcript.calls) - recorded,
            replies=sum(item.kind == "reply" for item in items),
            output=outcome[-1].content if outcome else None,
        )


#: Before the first attempt.
EMPTY_SNAPSHOT = StoreSnapshot(
    steps=0, entries={}, recorded=frozenset(), unanswered=frozenset(), replies=0, output=None
)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One process, after it has ended."""

    #: Steps that the process had reported as finished.
    acknowledged: int
    killed: bool
    snapshot: StoreSnapshot


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of the demo."""

    steps: int
    calls: int
    kills: int
    lost: int
    repeated: int
    wrong_answer: bool

    @property
    def passed(self) -> bool:
        return not self.lost and not self.repeated and not self.wrong_answer and self.kills > 0

    def __str__(self) -> str:
        return (
            f"demo: {self.steps} steps, {self.calls} tool calls, {self.kills} kills, "
            f"{self.lost} lost, {self.repeated} repeated"
        )


def check_attempts(attempts: Sequence[Attempt], ledger: Sequence[LedgerEntry]) -> DemoResult:
    """Count what was lost and what was repeated."""
    end = attempts[-1].snapshot
    return DemoResult(
        steps=end.steps,
        calls=len(end.recorded),
        kills=sum(attempt.killed for attempt in attempts),
        lost=count_lost(attempts),
        repeated=count_repeated(attempts, ledger),
        wrong_answer=end.output != expected_answer(),
    )


def count_lost(attempts: Sequence[Attempt]) -> int:
    """Count entries, steps and results that were stored after one attempt and are missing or changed after the next."""
    missing = 0
    for before, after in pairwise(attempt.snapshot for attempt in attempts):
        missing += len(before.entries.items() - after.entries.items())
        missing += len(before.recorded - after.recorded)
        missing += max(0, before.steps - after.steps)
    # Reported as finished, and not in the store.
    missing += sum(max(0, attempt.acknowledged - attempt.snapshot.steps) for attempt in attempts)
    return missing + len(attempts[-1].snapshot.unanswered)


def count_repeated(attempts: Sequence[Attempt], ledger: Sequence[LedgerEntry]) -> int:
    """Count payments that were started twice, and calls and requests that were repeated despite a stored result."""
    count = 0
    paid: set[str] = set()
    for line in ledger:
        before = attempts[line.attempt - 2].snapshot if line.attempt > 1 else EMPTY_SNAPSHOT
        if line.action == "ask":
            count += int(line.what) < before.replies
        elif line.action == "start":
            count += line.what in before.recorded or line.what in paid
            if line.what.startswith("pay-"):
                paid.add(line.what)
    return count
