"""holdfast demo, and whether its count can find anything wrong at all."""

import re
from pathlib import Path

import msgspec
import pytest
from tests.cli.command import Shell

from holdfast.cli.demo.clerk import STEPS, answer
from holdfast.cli.demo.ledger import Ledger, Line
from holdfast.cli.demo.verdict import NOTHING, Life, Snapshot, judge

LAST = re.compile(r"demo: 13 steps, 36 tool calls, (\d) kills, 0 lost, 0 repeated")


def test_the_demo_kills_and_loses_nothing(shell: Shell) -> None:
    told = shell.ok("demo", "--fast", "--seed", "11", "--kills", "4", "--keep", "kept")
    lines = told.splitlines()
    assert lines[0] == "seed 11: 4 kills"
    last = LAST.fullmatch(lines[-1])
    assert last is not None
    # On a busy machine a kill may come too late for the last life; one that is counted has happened.
    kills = int(last[1])
    assert 2 <= kills <= 4
    assert sum(line.startswith("  killed with SIGKILL") for line in lines) == kills
    assert sum("goes on after step" in line for line in lines) == kills
    assert f"  finished: {answer()}" in lines
    # The same numbers from what it left behind.
    shown = shell.json("show", "demo", "--store", "sqlite:kept/runs.db")
    assert (shown["run"]["steps"], len(shown["calls"])) == (13, 36)
    payments = [line.what for line in Ledger(shell.folder / "kept" / "ledger.jsonl").read() if line.deed == "start"]
    paid = sorted(payment for payment in payments if payment.startswith("pay-"))
    assert paid == sorted(f"pay-{number}" for number in range(1, 19))


def test_the_demo_on_a_terminal(shell: Shell) -> None:
    terminal = shell.terminal("demo", "--fast", "--kills", "2")
    assert terminal.finish() == 0
    assert LAST.fullmatch(terminal.text.splitlines()[-1])
    assert "\x1b[1;31m" in terminal.raw  # the kills stand out


# -- the count ------------------------------------------------------------------------------------------------------


def snapshot(steps: int, recorded: set[str], *, output: str | None = None) -> Snapshot:
    return msgspec.structs.replace(
        NOTHING,
        steps=steps,
        entries={number: number for number in range(len(recorded))},
        recorded=frozenset(recorded),
        replies=steps,
        output=output,
    )


def lives(first: Snapshot, last: Snapshot | None = None) -> list[Life]:
    done = last or snapshot(STEPS, {"read-1", "pay-1"}, output=answer())
    return [
        Life(acknowledged=first.steps, killed=True, left=first),
        Life(acknowledged=done.steps, killed=False, left=done),
    ]


HALF = snapshot(1, {"read-1"})


def test_a_life_and_its_resumption_are_counted() -> None:
    ledger = [
        Line(life=1, deed="ask", what="0"),
        Line(life=1, deed="start", what="read-1"),
        Line(life=2, deed="ask", what="1"),
        Line(life=2, deed="start", what="pay-1"),
    ]
    verdict = judge(lives(HALF), ledger)
    assert str(verdict) == "demo: 13 steps, 2 tool calls, 1 kills, 0 lost, 0 repeated"
    assert verdict.holds


@pytest.mark.parametrize(
    "again",
    [
        [Line(life=2, deed="ask", what="0")],  # its answer was stored
        [Line(life=2, deed="start", what="read-1")],  # its result was stored
        [Line(life=1, deed="start", what="pay-1"), Line(life=2, deed="start", what="pay-1")],  # in doubt, paid twice
        [Line(life=2, deed="start", what="pay-1"), Line(life=2, deed="start", what="pay-1")],
    ],
)
def test_what_was_done_again_is_counted(again: list[Line]) -> None:
    verdict = judge(lives(HALF), again)
    assert verdict.repeated == 1
    assert not verdict.holds


def test_an_unfinished_read_may_be_done_again() -> None:
    again = [Line(life=1, deed="start", what="read-2"), Line(life=2, deed="start", what="read-2")]
    assert judge(lives(HALF), again).repeated == 0


@pytest.mark.parametrize(
    "told",
    [
        lives(HALF, snapshot(STEPS, {"pay-1"}, output=answer())),  # a recorded result is gone
        lives(msgspec.structs.replace(HALF, entries={7: 7})),  # an entry is gone
        lives(msgspec.structs.replace(HALF, entries={0: 5})),  # an entry is another
        [Life(acknowledged=2, killed=True, left=HALF), lives(HALF)[1]],  # a step that was told to be saved is not there
        lives(HALF, msgspec.structs.replace(lives(HALF)[1].left, unanswered=frozenset({"pay-2"}))),
    ],
)
def test_what_is_missing_is_counted(told: list[Life]) -> None:
    verdict = judge(told, [])
    assert verdict.lost > 0
    assert not verdict.holds


def test_a_wrong_answer_or_no_kill_is_no_success() -> None:
    assert not judge(lives(HALF, snapshot(STEPS, {"read-1", "pay-1"}, output="nothing was paid")), []).holds
    assert not judge(lives(HALF)[1:], []).holds


def test_the_ledger_is_what_was_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", life=3)
    assert ledger.read() == []
    ledger.write("start", "pay-1")
    assert ledger.read() == [Line(life=3, deed="start", what="pay-1")]
    assert ledger.has("start", "pay-1")
    assert not ledger.has("end", "pay-1")
