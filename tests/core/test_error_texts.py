"""The texts of errors say what happened and what to do; their data is beside the text."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast.checkpoint import errors as stored
from holdfast.core import errors
from holdfast.core.run.mail import Mail, MailArrived
from holdfast.core.run.run_events import ReaderTooSlow
from holdfast.core.run.state import RunState
from holdfast.core.run.turns import ConversationIdle, Totals

MAIL = Mail(mail_id="m", topic="message", body=b"{}")


def make_cases() -> list[tuple[Exception, str, dict[str, Any]]]:
    """Return errors with their text and data. A test makes its own, so that a fault in their code is its failure."""
    return [
        (
            errors.RunAlreadyRunning("r"),
            "run r is already executing in this process: wait for it, or choose another id",
            {"run_id": "r", "is_elsewhere": False},
        ),
        (errors.UnknownTool("fly", []), "no tool 'fly'; known: none", {"name": "fly", "known": []}),
        (errors.UnknownTool("fly", ["a", "b"]), "no tool 'fly'; known: a, b", {}),
        (
            errors.StepsExceeded("r", 3),
            "run r took 3 steps without an answer: raise max_steps to let it continue",
            {"run_id": "r", "bound": 3},
        ),
        (
            errors.RuntimeExceeded("r", timedelta(seconds=3)),
            "run r ran for 0:00:03 without an answer: raise max_runtime to let it continue",
            {"run_id": "r", "bound": timedelta(seconds=3)},
        ),
        (
            errors.RepeatedToolCalls("r", "look", 5),
            "run r called look 5 times in a row with the same arguments: it is stuck",
            {"run_id": "r", "tool": "look", "times": 5},
        ),
        (
            errors.ToolFailed("look", ValueError("broken")),
            "tool look failed, and its on_error ends the run: ValueError: broken",
            {"tool": "look"},
        ),
        (errors.RunFailed("r", "E: x"), "run r failed: E: x", {"run_id": "r", "error": "E: x"}),
        (
            errors.TurnFailed("r", "t", "ValueError: x"),
            "conversation r: turn t ended without an answer: ValueError: x",
            {"run_id": "r", "turn_id": "t", "error": "ValueError: x"},
        ),
        (
            errors.ConversationBusy("r"),
            "conversation r is busy: send the message later, or queue it",
            {"run_id": "r"},
        ),
        (errors.TurnInterrupted("r"), "interrupted by the next message", {"run_id": "r"}),
        (
            errors.RunParked("size", "large"),
            "parked, size: large",
            {"reason": "size", "detail": "large", "message": "size: large"},
        ),
        (errors.Shutdown("down", step=3), "down", {"step": 3, "retry_after": timedelta(0), "is_strike": False}),
        (
            errors.ProcessExit(SystemExit(2)),
            "the run ended its process: SystemExit: 2",
            {"is_strike": True, "retry_after": timedelta(0)},
        ),
        (errors.MissingDefinition("x"), "x", {"retry_after": timedelta(minutes=1), "is_strike": False}),
        (errors.SaveFailed("x"), "x", {"retry_after": timedelta(seconds=5), "is_strike": False}),
        (errors.ModelUnavailable("x"), "x", {"retry_after": timedelta(seconds=30), "requested_delay": None}),
        (
            errors.ModelUnavailable("x", timedelta(0)),
            "x",
            {"retry_after": timedelta(0), "requested_delay": timedelta(0)},
        ),
        (MailArrived("mail", [MAIL]), "mail", {"mail": [MAIL]}),
        (MailArrived("mail"), "mail", {"mail": ()}),
        (
            ReaderTooSlow("r", "7"),
            "a watcher of run r was too slow: watch again with after='7'",
            {"run_id": "r", "cursor": "7"},
        ),
        (
            ConversationIdle("r"),
            "run r waits for the next message",
            {
                "run_id": "r",
                "wake_at": None,
                "wake_on": ("turn", "turn:interrupt", "message", "turn:close"),
                "only_for_time": False,
            },
        ),
        (
            stored.SchemaTooNew("the store", 9, 8),
            "the store has schema version 9, this holdfast knows up to 8: upgrade holdfast to open it",
            {"found": 9, "known": 8},
        ),
        (
            stored.SchemaTooOld("the store", 7, 8),
            "the store has schema version 7, this holdfast needs version 8, and its user may not migrate it: run "
            "`holdfast migrate` as the owner",
            {"found": 7, "known": 8},
        ),
        (
            stored.SchemaTooOld("the store", 0, 8),
            "the store has no tables, this holdfast needs version 8, and its user may not migrate it: run "
            "`holdfast migrate` as the owner",
            {},
        ),
        (
            stored.ClaimLost("r", 1, None),
            "run r: claim 1 is no longer valid: the run is removed or terminal",
            {"run_id": "r", "held": 1, "current": None},
        ),
        (
            stored.ClaimLost("r", 1, 2),
            "run r: claim 1 is no longer valid: it was superseded by 2",
            {"current": 2},
        ),
        (
            stored.RunBusy("r", "w"),
            "run r is owned by the live worker w: wait for it, or cancel the run",
            {"run_id": "r", "owner": "w"},
        ),
        (
            stored.RunExists("r"),
            "run r already exists: choose another id, or resume that run",
            {"run_id": "r", "begin": None, "is_elsewhere": True},
        ),
        (stored.RunExists("r", "wait", begin=b"{}"), "run r already exists: wait", {"begin": b"{}"}),
        (
            stored.RunConflict("r", "a"),
            "run r exists with another agent, prompt or inputs (its agent: a): choose another id",
            {"run_id": "r", "agent_name": "a"},
        ),
        (
            stored.RunNotFound("r"),
            "no run r in this store: the id is wrong, or the run ended and was removed",
            {"run_id": "r"},
        ),
        (
            stored.RunNotClaimable("r", "parked", "size"),
            "run r is parked (size) and cannot be claimed as it is",
            {"run_id": "r", "status": "parked", "reason": "size"},
        ),
        (stored.RunNotClaimable("r", "done"), "run r is done and cannot be claimed as it is", {"reason": ""}),
        (
            stored.LimitReached("r", "queued"),
            "run r is queued (a concurrency limit is reached) and cannot be claimed as it is",
            {"status": "queued", "reason": "a concurrency limit is reached"},
        ),
        (
            stored.RunEnded("r", "done"),
            "run r is done and reads no more mail: start another run",
            {"run_id": "r", "status": "done"},
        ),
        (
            stored.ConversationClosed("r", "done"),
            "conversation r is done and takes no more messages: begin one with another key",
            {"run_id": "r", "status": "done"},
        ),
        (
            stored.TurnConflict("r", "t"),
            "conversation r: another message has the id t: choose another id",
            {"run_id": "r", "turn_id": "t"},
        ),
        (stored.TurnNotFound("r", "t"), "conversation r has no message 't'", {"run_id": "r", "turn_id": "t"}),
        (stored.UnreadMail("r"), "run r has unread mail: read it before you write this", {"run_id": "r"}),
        (
            stored.InvalidCursor("x" * 100),
            f"'{'x' * 79} is not a cursor of this store: start again without one",
            {"cursor": "x" * 100},
        ),
        (
            stored.RunDamaged("r", "no begin"),
            "run r is damaged and was left unchanged: no begin",
            {"run_id": "r", "detail": "no begin"},
        ),
        (
            stored.UnknownVersion("r", 2, 1),
            "run r has format version 2, this holdfast knows up to 1: upgrade holdfast to resume it",
            {"run_id": "r", "found": 2, "known": 1},
        ),
        (
            stored.TranscriptTooLarge("r", 20, 10),
            "parked, size: run r: its transcript of 20 bytes exceeds 10: compact it or raise max_transcript_bytes",
            {"run_id": "r", "size": 20, "cap": 10, "reason": "size"},
        ),
    ]


@pytest.mark.parametrize(
    "index", [pytest.param(index, id=type(error).__name__) for index, (error, _, _) in enumerate(make_cases())]
)
def test_an_error_says_what_happened(index: int) -> None:
    error, text, data = make_cases()[index]
    assert str(error) == text
    assert {name: getattr(error, name) for name in data} == data


def test_totals_are_those_of_the_state() -> None:
    state = RunState(steps=3, elapsed=timedelta(seconds=4))
    assert Totals.from_state(state) == Totals(steps=3, elapsed=timedelta(seconds=4))
