"""holdfast tail"""

import json

from tests.cli.shell import Shell, kill, line_with


def test_tail_follows_over_a_crash_and_a_resume_to_the_end(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note gate note", "--run-id", "r1")
    first = shell.start("worker", "sample:app", "-q")
    shell.wait_for_effect("gate c2-1")
    tail = shell.start("tail", "r1")
    line_with(tail.stdout, "note c1-1 done: noted 1")
    line_with(tail.stderr, "run r1 is running")
    kill(first)
    line_with(tail.stderr, "run r1 is interrupted")
    shell.open_gate()
    shell.ok("recover", "sample:app", "-q")
    rest, stderr = tail.communicate()
    lines = rest.splitlines()
    assert [line.strip() for line in lines if line.startswith("  ") and " done: " in line] == [
        "gate c2-1 done: the gate is open",
        "note c3-1 done: noted 3",
    ]
    assert lines[-1] == "answer: done: note gate note"
    assert stderr.splitlines()[-1] == "run r1 is done"
    assert tail.returncode == 0


def test_tail_ends_when_the_run_is_gone(shell: Shell) -> None:
    first = shell.start("run", "sample:forgetting", "gate", "--run-id", "r1")
    shell.wait_for_effect("gate c1-1")
    tail = shell.start("tail", "r1")
    line_with(tail.stderr, "run r1 is running")
    shell.open_gate()
    assert first.wait() == 0
    _, stderr = tail.communicate()
    assert stderr.splitlines()[-1] == "run r1 is removed"
    assert tail.returncode == 0


def test_tail_prints_everything_of_a_run_that_is_over_and_ends(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "r1")
    shell.ok("recover", "sample:app", "-q")
    events = [json.loads(line) for line in shell.ok("tail", "r1", "--lines", "0", "--json").splitlines()]
    types = [event["type"] for event in events]
    assert types == [
        "message", "reply", "tool_call", "tool_result", "step_finished", "reply", "step_finished", "output", "status",
    ]  # fmt: skip
    assert len(shell.ok("tail", "r1", "-n", "2").splitlines()) == 2
    rest = shell.ok("tail", "r1", "--json", "--after", events[3]["cursor"]).splitlines()
    assert [json.loads(line) for line in rest] == events[4:]
    refused = shell.run("tail", "r1", "--after", "nowhere")
    assert (refused.returncode, "'nowhere' is not a cursor" in refused.stderr) == (1, True)


def test_tail_goes_on_when_the_conversation_was_rewritten(shell: Shell) -> None:
    shell.ok("submit", "compacting", "note note note gate note gate", "--run-id", "r1")
    worker = shell.start("worker", "sample:app", "-q")
    shell.wait_for_effect("gate c4-1")
    tail = shell.start("tail", "r1", "--json", "-n", "0")
    line_with(tail.stdout, '"call_id":"c4-1"')
    shell.open_gate()
    rest, stderr = tail.communicate()
    events = [json.loads(line) for line in rest.splitlines()]
    assert [event for event in events if event["type"] == "message"] == []
    assert [event["type"] for event in events if "cursor" in event][-1] == "output"
    steps = [event["step"] for event in events if event["type"] == "step_finished"]
    assert steps == sorted(set(steps))
    assert "the conversation was rewritten: only its new messages are shown" in stderr.splitlines()
    assert stderr.splitlines()[-1] == "run r1 is done"
    worker.kill()


def test_ctrl_c_ends_the_following_and_not_the_run(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "r1")
    terminal = shell.terminal("tail", "r1")
    terminal.wait_for("run r1 is queued")
    terminal.type("\x03")
    assert terminal.finish() == 0
    assert "stopped following; run r1 is not affected" in terminal.text
    assert shell.states() == {"r1": "queued"}
