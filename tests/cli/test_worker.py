"""holdfast worker and submit, and what is done to runs while a worker has them."""

import json
import signal

from tests.cli.shell import TIMEOUT, Shell, kill, line_with


def test_a_worker_takes_what_is_submitted_and_drains_on_sigterm(shell: Shell) -> None:
    worker = shell.start("worker", "sample:app")
    line_with(worker.stderr, "serving compacting, other, phased, sampler")
    assert shell.ok("submit", "sampler", "note send", "--wait") == "done: note send\n"
    shell.ok("submit", "other", "note gate note", "--run-id", "r2")
    shell.wait_for_effect("gate c2-1")
    worker.send_signal(signal.SIGTERM)
    line_with(worker.stderr, "stopping after the current step")
    shell.open_gate()
    line_with(worker.stderr, "drained")
    assert worker.wait() == 0
    assert shell.states()["r2"] == "interrupted"
    assert "note c3-1" not in shell.read_effects()


def test_what_a_killed_worker_had_is_taken_by_another(shell: Shell) -> None:
    shell.ok("submit", "sampler", "send gate", "--run-id", "r1")
    first = shell.start("worker", "sample:app", "--quiet")
    shell.wait_for_effect("gate c2-1")
    kill(first)
    shell.open_gate()
    second = shell.start("worker", "sample:app", "--json")
    events = []
    assert second.stdout is not None
    for line in second.stdout:
        events.append(json.loads(line))
        if events[-1]["event"] == "done":
            break
    assert events[0] == {
        "event": "status", "run_id": "r1", "agent": "sampler", "step": 1, "status": "running", "resumed": True,
    }  # fmt: skip
    assert events[-1] == {"event": "done", "run_id": "r1", "agent": "sampler", "output": "done: send gate"}
    assert shell.read_effects().count("send c1-1") == 1
    second.send_signal(signal.SIGTERM)
    assert second.wait() == 0


def test_a_run_that_a_worker_drives_is_cancelled_by_asking_it(shell: Shell) -> None:
    shell.ok("submit", "sampler", "gate", "--run-id", "r1")
    worker = shell.start("worker", "sample:app")
    shell.wait_for_effect("gate c1-1")
    refused = shell.run("rm", "--force", "r1")
    assert refused.returncode == 1
    assert "owned by the live worker" in refused.stderr
    assert shell.json("cancel", "r1")["status"] in ("cancelling", "cancelled")  # the worker may be quick
    line_with(worker.stderr, "r1 (sampler) run r1 was cancelled")
    assert shell.states() == {"r1": "cancelled"}
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_submit_prints_the_id_and_the_same_again_is_fine(shell: Shell) -> None:
    run_id = shell.ok("submit", "sampler", "note", "--caller", "me", "--label", "a=b").strip()
    assert shell.states() == {run_id: "queued"}
    (run,) = shell.json("ls")["runs"]
    assert (run["caller"], run["labels"], run["prompt"]) == ("me", {"a": "b"}, "note")
    assert shell.json("submit", "sampler", "note", "--run-id", run_id) == {"run_id": run_id, "status": "queued"}
    other = shell.run("submit", "sampler", "send", "--run-id", run_id)
    assert other.returncode == 1
    assert "exists with another agent, prompt or inputs" in other.stderr
    shell.ok("cancel", run_id)
    assert shell.json("submit", "sampler", "note", "--run-id", run_id) == {"run_id": run_id, "status": "cancelled"}


def test_waiting_for_a_run_that_fails_fails(shell: Shell) -> None:
    shell.ok("submit", "sampler", "boom", "--run-id", "r1")
    shell.run("recover", "sample:app", "-q")
    done = shell.run("submit", "sampler", "boom", "--run-id", "r1", "--wait", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["status"] == "failed"
    assert "RuntimeError: the model is down" in done.stderr


def test_a_worker_whose_log_is_read_no_more_goes_on_and_drains_on_sigterm(shell: Shell) -> None:
    worker = shell.start("worker", "sample:app")
    line_with(worker.stderr, "serving")
    assert worker.stderr is not None
    worker.stderr.close()
    assert shell.ok("submit", "sampler", "note send", "--wait") == "done: note send\n"
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(TIMEOUT) == 0


def test_events_that_are_read_no_more_end_no_run(shell: Shell) -> None:
    worker = shell.start("worker", "sample:app", "--json")
    line_with(worker.stderr, "serving")
    assert worker.stdout is not None
    worker.stdout.close()
    assert shell.ok("submit", "sampler", "note send", "--wait") == "done: note send\n"
    worker.send_signal(signal.SIGTERM)
    worker.wait(TIMEOUT)


def test_a_tool_that_never_returns_does_not_keep_a_worker_from_exiting(shell: Shell) -> None:
    shell.ok("submit", "stuck", "go", "--run-id", "r1")
    worker = shell.start("worker", "stuck:app")
    shell.wait_for_effect("hang c1")
    worker.send_signal(signal.SIGTERM)
    line_with(worker.stderr, "more seconds for tools in threads: run r1, tool hang, call c1")
    line_with(worker.stderr, "no longer waits for these tools")
    assert worker.wait(TIMEOUT) == 1
    # Its process is dead, so any worker takes it.
    assert shell.states() == {"r1": "interrupted"}


def test_a_tool_that_never_returns_does_not_keep_a_run_from_exiting(shell: Shell) -> None:
    run = shell.start("run", "stuck:app", "go", "--run-id", "r1")
    shell.wait_for_effect("hang c1")
    run.send_signal(signal.SIGINT)
    line_with(run.stderr, "resume with: holdfast resume")
    assert run.wait(TIMEOUT) == 130
    assert shell.states() == {"r1": "interrupted"}


def test_submit_warns_if_no_live_worker_knows_the_agent(shell: Shell) -> None:
    queued = shell.run("submit", "sampler", "note", "--run-id", "r1")
    assert (queued.returncode, queued.stdout) == (0, "r1\n")
    assert queued.stderr == (
        "holdfast: no live worker knows agent sampler: its runs wait until `holdfast worker MODULE:APP` is started "
        "with it; no worker is alive\n"
    )
