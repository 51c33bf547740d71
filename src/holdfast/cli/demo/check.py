"""What was lost and what was repeated, counted from the ledger and from what the store had after each kill."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from holdfast.checkpoint.codec import Progress, decode
from holdfast.checkpoint.record import StoredRun
from holdfast.cli.demo.agent import LedgerEntry, expected_answer
from holdfast.cli.transcript import Transcript


class StoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the store had of the run at one moment, when nobody was writing."""

    steps: int
    #: Every entry of the journal, by number.
    entries: dict[int, int]
    #: Calls with a recorded result, and calls without.
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


#: Before the first life.
EMPTY_SNAPSHOT = StoreSnapshot(
    steps=0, entries={}, recorded=frozenset(), unanswered=frozenset(), replies=0, output=None
)


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One process, after its end."""

    #: Steps of which it had told that they were finished and saved.
    acknowledged: int
    killed: bool
    #: What the store had then.
    snapshot: StoreSnapshot


class DemoResult(msgspec.Struct, frozen=True, kw_only=True):
    """The whole demo in five numbers, and why it is not as it should be."""

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
    """Count."""
    end = attempts[-1].snapshot
    return DemoResult(
        steps=end.steps,
        calls=len(end.recorded),
        kills=sum(life.killed for life in attempts),
        lost=count_lost(attempts),
        repeated=count_repeated(attempts, ledger),
        wrong_answer=end.output != expected_answer(),
    )


def count_lost(attempts: Sequence[Attempt]) -> int:
    """Entries, steps and results that were there once and are not there later, or not as they were."""
    missing = 0
    for life, later in pairwise(attempts):
        missing += len(life.snapshot.entries.items() - later.snapshot.entries.items())
        missing += len(life.snapshot.recorded - later.snapshot.recorded)
        missing += max(0, life.snapshot.steps - later.snapshot.steps)
    # Told to be saved, and not in the store.
    missing += sum(max(0, life.acknowledged - life.snapshot.steps) for life in attempts)
    return missing + len(attempts[-1].snapshot.unanswered)


def count_repeated(attempts: Sequence[Attempt], ledger: Sequence[LedgerEntry]) -> int:
    """Payments that were begun twice, and calls and questions that were done again although their answer was stored."""
    count = 0
    paid: set[str] = set()
    for line in ledger:
        before = attempts[line.attempt - 2].snapshot if line.attempt > 1 else EMPTY_SNAPSHOT
        known = line.what in before.recorded if line.action == "start" else False
        asked = line.action == "ask" and int(line.what) < before.replies
        if known or asked or (line.action == "start" and line.what in paid):
            count += 1
        if line.action == "start" and line.what.startswith("pay-"):
            paid.add(line.what)
    return count
