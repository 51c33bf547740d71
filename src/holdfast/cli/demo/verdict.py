"""What was lost and what was repeated, counted from the ledger and from what the store had after each kill."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from holdfast.checkpoint.codec import Progress, decode
from holdfast.checkpoint.record import StoredRun
from holdfast.cli.demo.clerk import answer
from holdfast.cli.demo.ledger import Line
from holdfast.cli.transcript import Transcript


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
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
    def of(cls, stored: StoredRun) -> "Snapshot":
        transcript = Transcript()
        items = transcript.read(stored.entries)
        recorded = frozenset(call.call_id for call in transcript.calls if call.state == "done")
        outcome = [item for item in items if item.kind == "outcome" and not item.error]
        return cls(
            steps=decode(stored.record.progress, Progress).iteration,
            entries={entry.seq: entry.checksum() for entry in stored.entries},
            recorded=recorded,
            unanswered=frozenset(call.call_id for call in transcript.calls) - recorded,
            replies=sum(item.kind == "reply" for item in items),
            output=outcome[-1].content if outcome else None,
        )


#: Before the first life.
NOTHING = Snapshot(steps=0, entries={}, recorded=frozenset(), unanswered=frozenset(), replies=0, output=None)


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """One process, after its end."""

    #: Steps of which it had told that they were finished and saved.
    acknowledged: int
    killed: bool
    #: What the store had then.
    left: Snapshot


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The whole demo in five numbers, and why it is not as it should be."""

    steps: int
    calls: int
    kills: int
    lost: int
    repeated: int
    wrong_answer: bool

    @property
    def holds(self) -> bool:
        return not self.lost and not self.repeated and not self.wrong_answer and self.kills > 0

    def __str__(self) -> str:
        return (
            f"demo: {self.steps} steps, {self.calls} tool calls, {self.kills} kills, "
            f"{self.lost} lost, {self.repeated} repeated"
        )


def judge(lives: Sequence[Life], ledger: Sequence[Line]) -> Verdict:
    """Count."""
    end = lives[-1].left
    return Verdict(
        steps=end.steps,
        calls=len(end.recorded),
        kills=sum(life.killed for life in lives),
        lost=lost(lives),
        repeated=repeated(lives, ledger),
        wrong_answer=end.output != answer(),
    )


def lost(lives: Sequence[Life]) -> int:
    """Entries, steps and results that were there once and are not there later, or not as they were."""
    missing = 0
    for life, later in pairwise(lives):
        missing += len(life.left.entries.items() - later.left.entries.items())
        missing += len(life.left.recorded - later.left.recorded)
        missing += max(0, life.left.steps - later.left.steps)
    # Told to be saved, and not in the store.
    missing += sum(max(0, life.acknowledged - life.left.steps) for life in lives)
    return missing + len(lives[-1].left.unanswered)


def repeated(lives: Sequence[Life], ledger: Sequence[Line]) -> int:
    """Payments that were begun twice, and calls and questions that were done again although their answer was stored."""
    count = 0
    paid: set[str] = set()
    for line in ledger:
        before = lives[line.life - 2].left if line.life > 1 else NOTHING
        known = line.what in before.recorded if line.deed == "start" else False
        asked = line.deed == "ask" and int(line.what) < before.replies
        if known or asked or (line.deed == "start" and line.what in paid):
            count += 1
        if line.deed == "start" and line.what.startswith("pay-"):
            paid.add(line.what)
    return count
