"""holdfast demo, and whether its count can find anything wrong at all."""

import asyncio
import re
import time
from pathlib import Path

import msgspec
import pytest
from tests.cli.shell import Shell

from holdfast.batteries.budget import Budget
from holdfast.cli.demo.invoices import STEPS, InvoiceLedger, LedgerEntry, expected_answer
from holdfast.cli.demo.killing import EMPTY_SNAPSHOT, DemoAttempt, DemoSnapshot, check_attempts
from holdfast.cli.demo.sample_fleet import build_fleet
from holdfast.cli.demo.worker_kills import KilledFleet
from holdfast.core.run.status import AttemptEnd

LAST = re.compile(r"demo: 13 steps, 36 tool calls, (\d) kills, 0 lost, 0 repeated")


def test_the_demo_kills_and_loses_nothing(shell: Shell) -> None:
    output = shell.ok("demo", "--fast", "--seed", "11", "--kills", "4", "--keep", "kept")
    lines = output.splitlines()
    assert lines[0] == "seed 11: 4 kills"
    last = LAST.fullmatch(lines[-1])
    assert last is not None
    # On a busy machine a kill may come too late for the last attempt; one that is counted has happened.
    kills = int(last[1])
    assert 2 <= kills <= 4
    assert sum(line.startswith("  killed with SIGKILL") for line in lines) == kills
    assert sum("resumed after step" in line for line in lines) == kills
    assert f"  finished: {expected_answer()}" in lines
    # The same numbers from what it left behind.
    shown = shell.json("show", "demo", "--store", "sqlite:kept/runs.db")
    assert (shown["run"]["steps"], len(shown["calls"])) == (13, 36)
    payments = [
        line.what for line in InvoiceLedger(shell.folder / "kept" / "ledger.jsonl").read() if line.action == "start"
    ]
    paid = sorted(payment for payment in payments if payment.startswith("pay-"))
    assert paid == sorted(f"pay-{number}" for number in range(1, 19))


def test_the_demo_on_a_terminal(shell: Shell) -> None:
    terminal = shell.terminal("demo", "--fast", "--kills", "2")
    assert terminal.finish() == 0
    assert LAST.fullmatch(terminal.text.splitlines()[-1])
    assert "\x1b[1;31m" in terminal.raw  # the kills stand out


async def test_the_fleet_of_the_page_reports_each_killed_worker_and_lasts_for_hours(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    async with build_fleet(url, take_runs=False) as app:
        began, fleet = time.monotonic(), asyncio.create_task(KilledFleet(app, url, kill_interval=1.0).run())
        async with asyncio.timeout(240):
            with app.changes.listen() as changed:
                while len(reports := (await app.list(agent="incidents")).runs) < 2:
                    assert not fleet.done(), fleet.exception()
                    await changed.wait()
        for run in reports:
            assert re.fullmatch(
                r"worker \w died, research-001 resumed at step \d+ on worker \w in \d+\.\d s", run.prompt
            )
        attempts = (await app.get("research-001")).attempts
        assert [each.end for each in attempts][:2] == [AttemptEnd.DIED, AttemptEnd.DIED]
        # At this rate no account is empty within the hour that its limit is for.
        budget, passed = app.ports.budget, time.monotonic() - began
        assert isinstance(budget, Budget)
        assert all(account.share * 3600 / passed < 1 for account in await budget.accounts())
        fleet.cancel()
        await asyncio.gather(fleet, return_exceptions=True)
        assert not [run for run in (await app.list(status="running")).runs if run.owner_alive]


# -- the count ------------------------------------------------------------------------------------------------------


def snapshot(steps: int, recorded: set[str], *, output: str | None = None) -> DemoSnapshot:
    return msgspec.structs.replace(
        EMPTY_SNAPSHOT,
        steps=steps,
        entries={number: number for number in range(len(recorded))},
        recorded=frozenset(recorded),
        replies=steps,
        output=output,
    )


def make_attempts(first: DemoSnapshot, last: DemoSnapshot | None = None) -> list[DemoAttempt]:
    done = last or snapshot(STEPS, {"read-1", "pay-1"}, output=expected_answer())
    return [
        DemoAttempt(acknowledged=first.steps, killed=True, snapshot=first),
        DemoAttempt(acknowledged=done.steps, killed=False, snapshot=done),
    ]


HALF = snapshot(1, {"read-1"})


def test_a_life_and_its_resumption_are_counted() -> None:
    ledger = [
        LedgerEntry(attempt=1, action="ask", what="0"),
        LedgerEntry(attempt=1, action="start", what="read-1"),
        LedgerEntry(attempt=2, action="ask", what="1"),
        LedgerEntry(attempt=2, action="start", what="pay-1"),
    ]
    verdict = check_attempts(make_attempts(HALF), ledger)
    assert str(verdict) == "demo: 13 steps, 2 tool calls, 1 kills, 0 lost, 0 repeated"
    assert verdict.passed


@pytest.mark.parametrize(
    "again",
    [
        [LedgerEntry(attempt=2, action="ask", what="0")],  # its answer was stored
        [LedgerEntry(attempt=2, action="start", what="read-1")],  # its result was stored
        [
            LedgerEntry(attempt=1, action="start", what="pay-1"),
            LedgerEntry(attempt=2, action="start", what="pay-1"),
        ],  # in doubt, paid twice
        [LedgerEntry(attempt=2, action="start", what="pay-1"), LedgerEntry(attempt=2, action="start", what="pay-1")],
    ],
)
def test_what_was_done_again_is_counted(again: list[LedgerEntry]) -> None:
    verdict = check_attempts(make_attempts(HALF), again)
    assert verdict.repeated == 1
    assert not verdict.passed


def test_an_unfinished_read_may_be_done_again() -> None:
    again = [
        LedgerEntry(attempt=1, action="start", what="read-2"),
        LedgerEntry(attempt=2, action="start", what="read-2"),
    ]
    assert check_attempts(make_attempts(HALF), again).repeated == 0


@pytest.mark.parametrize(
    "attempts",
    [
        make_attempts(HALF, snapshot(STEPS, {"pay-1"}, output=expected_answer())),  # a recorded result is gone
        make_attempts(msgspec.structs.replace(HALF, entries={7: 7})),  # an entry is gone
        make_attempts(msgspec.structs.replace(HALF, entries={0: 5})),  # an entry is another
        [
            DemoAttempt(acknowledged=2, killed=True, snapshot=HALF),
            make_attempts(HALF)[1],
        ],  # a step that was reported as saved is missing
        make_attempts(HALF, msgspec.structs.replace(make_attempts(HALF)[1].snapshot, unanswered=frozenset({"pay-2"}))),
    ],
)
def test_what_is_missing_is_counted(attempts: list[DemoAttempt]) -> None:
    verdict = check_attempts(attempts, [])
    assert verdict.lost > 0
    assert not verdict.passed


def test_a_wrong_answer_or_no_kill_is_no_success() -> None:
    wrong = snapshot(STEPS, {"read-1", "pay-1"}, output="nothing was paid")
    assert not check_attempts(make_attempts(HALF, wrong), []).passed
    assert not check_attempts(make_attempts(HALF)[1:], []).passed


def test_the_ledger_is_what_was_written(tmp_path: Path) -> None:
    ledger = InvoiceLedger(tmp_path / "ledger", attempt=3)
    assert ledger.read() == []
    ledger.write("start", "pay-1")
    assert ledger.read() == [LedgerEntry(attempt=3, action="start", what="pay-1")]
    assert ledger.has("start", "pay-1")
    assert not ledger.has("end", "pay-1")
