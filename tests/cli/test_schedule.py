"""The schedule commands, as a user meets them."""

import json

from tests.cli.shell import Shell


def test_a_job_is_added_shown_run_now_and_removed(shell: Shell) -> None:
    assert "fires first at" in shell.ok("schedule", "add", "nightly", "sampler", "note", "--cron", "0 3 * * *")
    [job] = json.loads(shell.ok("schedule", "ls", "--json"))
    assert (job["name"], job["agent"], job["cron"], job["missed"]) == ("nightly", "sampler", "0 3 * * *", "once")
    assert "nightly" in shell.ok("schedule", "ls")
    assert len(shell.ok("schedule", "next", "nightly", "-n", "3").splitlines()) == 3
    run_id = shell.ok("schedule", "run-now", "nightly").strip()
    assert shell.states() == {run_id: "queued"}
    assert "removed" in shell.ok("schedule", "rm", "nightly")
    assert json.loads(shell.ok("schedule", "ls", "--json")) == []


def test_what_cannot_be_is_told_in_one_line(shell: Shell) -> None:
    shell.ok("schedule", "add", "nightly", "sampler", "note", "--cron", "0 3 * * *")
    for words, code, message in (
        (["add", "nightly", "sampler", "note", "--cron", "0 3 * * *"], 1, "exists already"),
        (["add", "other", "sampler", "note", "--cron", "every day"], 1, "not a cron expression"),
        (["add", "other", "sampler", "note", "--cron", "0 3 * * *", "--timezone", "Atlantis"], 1, "not a time zone"),
        (["add", "other", "sampler", "note", "--cron", "0 3 * * *", "--missed", "some"], 2, "--missed"),
        (["rm", "missing"], 1, "no job named"),
        (["next", "missing"], 1, "no job named"),
        (["ls", "--store", "memory:"], 1, "end with this command"),
    ):
        done = shell.run("schedule", *words)
        assert done.returncode == code, (words, done.stderr)
        assert message in done.stderr
        assert "Traceback" not in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_what_is_refused_makes_nothing(shell: Shell) -> None:
    for words, message in (
        (["ls"], "there is no store at runs.db"),
        (["rm", "nightly"], "there is no store at runs.db"),
        (["next", "nightly"], "there is no store at runs.db"),
        (["run-now", "nightly"], "there is no store at runs.db"),
        (["add", "nightly", "sampler", "note", "--cron", "every day"], "not a cron expression"),
        (
            ["add", "nightly", "sampler", "note", "--cron", "* * * * *", "--store", "memory:"],
            "end with this command",
        ),
        (["loop", "--store", "memory:"], "end with this command"),
    ):
        done = shell.run("schedule", *words)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), (words, done.stderr)
        assert message in done.stderr
        assert list(shell.folder.iterdir()) == [], words


def test_the_loop_submits_what_is_due(shell: Shell) -> None:
    shell.ok("schedule", "add", "always", "sampler", "note", "--cron", "* * * * * *")
    process = shell.start("schedule", "loop", "--every", "0.1")
    try:
        while not shell.states():
            assert process.poll() is None
    finally:
        process.terminate()
        process.wait()
    [first, *_] = shell.states()
    assert first.startswith("schedule:always:")
