"""holdfast pending, approve, deny, answer, send and signal, and how other commands show runs that wait."""

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cli.modules.patient import agent
from tests.cli.shell import Shell

from holdfast import App, RunWaiting
from holdfast.cli.options import parse_future_time
from holdfast.cli.output import UsageError
from holdfast.cli.program import build_program
from holdfast.core.run.waiting import WaitingCall
from holdfast.runtime.operations.mailing import AlreadyAnswered, NotWaiting


class Host:
    """A store, an App that executes runs in it, and commands that need no agent's code, all in this process."""

    def __init__(self, store: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._store, self._capsys = store, capsys

    def ok(self, *args: str) -> str:
        """The stdout of a command."""
        build_program()(args=list(args), standalone_mode=False)
        self.printed = self._capsys.readouterr()
        return self.printed.out

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--json"))

    def run_until_waiting(self, prompt: str) -> tuple[WaitingCall, ...]:
        async def run() -> None:
            async with App([agent], self._store, worker=False) as app:
                await app.run(agent, prompt, run_id="r1")

        with pytest.raises(RunWaiting) as raised:
            asyncio.run(run())
        return raised.value.calls

    def resume(self) -> Any:
        """The output of the run."""

        async def resume() -> Any:
            async with App([agent], self._store, worker=False) as app:
                return (await app.resume("r1")).output

        return asyncio.run(resume())


@pytest.fixture
def host(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    monkeypatch.setenv("HOLDFAST_STORE", url)
    # Each command adds a log handler: its process ends with it, this one does not.
    log = logging.getLogger("holdfast")
    handlers, propagate = list(log.handlers), log.propagate
    yield Host(url, capsys)
    log.handlers[:], log.propagate = handlers, propagate


def test_run_and_resume_say_what_a_run_waits_for_and_how_to_answer(shell: Shell) -> None:
    done = shell.run("run", "patient:agent", "pay ask_person wait_for render", "--run-id", "r1", "-q")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == [
        "run r1 is waiting: for approval of pay (c1), an answer: Which colour? (red, blue), the signal paid, "
        "the result of render (c4)",
        "approve with: holdfast approve r1 c1",
        "answer with: holdfast answer r1 c2 VALUE",
        "signal with: holdfast signal r1 paid JSON",
        "answer with: holdfast answer r1 c4 VALUE",
        "then a worker resumes it, or: holdfast resume patient:agent r1",
    ]
    again = shell.run("resume", "patient:agent", "r1", "-q", "--json")
    outcome = json.loads(again.stdout)
    assert (again.returncode, outcome["status"]) == (1, "waiting")
    assert [wait["kind"] for wait in outcome["waits"]] == ["approval", "question", "signal", "result"]
    assert not any("token" in wait for wait in outcome["waits"])


def test_run_keeps_waiting_if_it_is_asked_to(shell: Shell) -> None:
    waits = shell.start("run", "patient:agent", "pay", "--run-id", "r1", "--through-waits")
    while "c1" not in shell.run("pending").stdout:
        assert waits.poll() is None
    shell.ok("approve", "r1", "c1")
    out, err = waits.communicate(timeout=60)
    assert "in another terminal: holdfast approve r1 c1" in err
    assert (waits.returncode, out) == (0, "['paid 200 to ann'] []\n")


def test_an_approved_call_is_made_with_edited_arguments(host: Host) -> None:
    host.run_until_waiting("pay pay")
    header, first, _ = host.ok("pending").splitlines()
    assert header.split() == ["RUN", "CALL", "TOOL", "ARGUMENTS", "REASON", "ASKED", "EXPIRES"]
    assert first.split()[:3] == ["r1", "c1", "pay"]
    assert '{"amount":200,"to":"ann"}  much money' in first
    assert first.endswith("in 2 d")
    [one, two] = host.json("pending", "--tool", "pay", "--agent", "patient")
    assert (one["call_id"], two["call_id"], one["arguments"]) == ("c1", "c2", {"amount": 200, "to": "ann"})
    for other in (("--tool", "render"), ("--agent", "other"), ("--caller", "bob")):
        assert host.ok("pending", *other) == "no calls wait for a person\n"
    assert host.ok("approve", "r1", "c1", "--set", "amount=5", "--by", "ann") == "call c1 of run r1 is approved\n"
    assert [call["call_id"] for call in host.json("pending")] == ["c2"]
    with pytest.raises(AlreadyAnswered, match=r"ann answered first \(approve\)"):
        host.ok("deny", "r1", "c1")
    assert host.json("deny", "r1", "c2", "--reason", "too much")["decision"] == "deny"
    assert host.resume() == "['paid 5 to ann', 'The call was denied: too much.'] []"


def test_questions_signals_results_and_messages(host: Host) -> None:
    host.run_until_waiting("ask_person wait_for render")
    question, result = host.json("pending")
    assert (question["kind"], question["reason"]) == ("question", "Which colour? (red, blue)")
    assert (result["kind"], result["call_id"]) == ("result", "c3")
    host.ok("answer", "r1", "c1", "red")
    assert host.ok("signal", "r1", "paid", '{"euro": 5}', "--id", "s1") == "s1\n"
    host.ok("answer", "r1", "c3", '["sea.png"]')
    assert host.ok("send", "r1", "and then?", "--id", "m1") == "m1\n"
    assert host.json("send", "r1", "and then?", "--id", "m1") == {"run_id": "r1", "id": "m1"}
    assert host.resume() == "['red', {'euro': 5}, ['sea.png']] ['and then?']"


def test_a_signal_is_not_an_answer(host: Host) -> None:
    host.run_until_waiting("wait_for")
    with pytest.raises(NotWaiting, match="no call c1 that waits for an answer"):
        host.ok("answer", "r1", "c1", "5")


def test_show_and_ls_show_what_a_run_waits_for(host: Host) -> None:
    host.run_until_waiting("pay wait_for")
    listed = host.ok("ls").splitlines()[1]
    assert 'waits for approval of pay(amount=200, to="ann"), ' in listed
    assert listed.endswith(", expires in 2 d, and 1 more call")
    shown = host.ok("show", "r1")
    assert "needs approval: pay(amount=200, to=ann) c1 much money" in shown
    assert "waiting: wait_for(name=paid) c2 signal paid" in shown
    assert host.printed.err.splitlines() == [
        "approve with: holdfast approve r1 c1",
        "signal with: holdfast signal r1 paid JSON",
    ]
    as_json = host.json("show", "r1")
    assert [call["state"] for call in as_json["calls"]] == ["needs approval", "waiting"]
    assert as_json["waits"][0]["arguments"] == {"amount": 200, "to": "ann"}


def test_submit_queues_a_run_for_later(host: Host) -> None:
    host.ok("submit", "patient", "pay", "--run-id", "r1", "--not-before", "2h")
    run = host.json("show", "r1")["run"]
    assert run["status"] == "queued"
    delay = datetime.fromisoformat(run["not_before"]) - datetime.now(UTC)
    assert timedelta(hours=1) < delay <= timedelta(hours=2)
    with pytest.raises(UsageError, match="--not-before"):
        parse_future_time("tomorrow", "--not-before", datetime.now(UTC))
    assert parse_future_time("2030-01-01T00:00Z", "--not-before", datetime.now(UTC)) == datetime(2030, 1, 1, tzinfo=UTC)
