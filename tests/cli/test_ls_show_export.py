"""holdfast ls, show and export."""

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import apsw
import pytest
from tests.cli.modules import approving, sample
from tests.cli.shell import SOURCE, Shell, kill

from holdfast import Agent, App, Reply, Retry, RunWaiting, ToolCall, tool
from holdfast.adapters.pydantic_ai import durable
from holdfast.errors import ModelUnavailable, RunFailed


def test_ls_shows_how_every_run_stands(shell: Shell) -> None:
    process = shell.start("run", "sample:agent", "note gate", "--run-id", "killed")
    shell.wait_for_effect("gate c2-1")
    shell.wait_for_entry("killed", "c2-1")
    (running,) = shell.json("ls")["runs"]
    assert (running["status"], running["owner_alive"]) == ("running", True)
    kill(process)
    shell.ok(
        "submit", "other", "note", "--run-id", "queued", "--caller", "me", "--label", "team=a", "--label", "env=test"
    )
    second, first = shell.json("ls")["runs"]
    assert first["usage"]["cost_usd"] == pytest.approx(0.002)
    assert {name: first[name] for name in ("run_id", "status", "agent", "steps", "owner_alive")} == {
        "run_id": "killed", "status": "interrupted", "agent": "sampler", "steps": 1, "owner_alive": False,
    }  # fmt: skip
    assert first["size"] > 100
    assert datetime.fromisoformat(first["created_at"]).tzinfo is not None
    assert (second["status"], second["caller"], second["parent"]) == ("queued", "me", None)

    for options, found in [
        (["--status", "interrupted", "--status", "running"], ["killed"]),
        (["--status", "running"], []),
        (["--agent", "other", "--caller", "me"], ["queued"]),
        (["--label", "team=a", "--label", "env=test"], ["queued"]),
        (["--label", "team=b"], []),
    ]:
        assert [run["run_id"] for run in shell.json("ls", *options)["runs"]] == found, options


def test_ls_lists_the_newest_runs_and_says_that_there_are_more(shell: Shell) -> None:
    asyncio.run(submit_runs(shell.folder / "runs.db", 51))
    newest = shell.run("ls")
    rows = newest.stdout.splitlines()[1:]
    assert [row.split()[0] for row in rows] == [f"r{number}" for number in range(50, 0, -1)]
    assert newest.stderr == "there are more than these 50 runs: use --limit N, or --all for all of them\n"
    limited = shell.run("ls", "--limit", "2", "--json")
    assert [run["run_id"] for run in json.loads(limited.stdout)["runs"]] == ["r50", "r49"]
    assert "there are more than these 2 runs" in limited.stderr
    assert "no runs" in shell.ok("ls", "--until", "1h")
    assert "no runs" not in shell.ok("ls", "--until", "2100-01-01T00:00")
    everything = shell.run("ls", "--all", "--since", "1h")
    assert len(everything.stdout.splitlines()) == 52
    assert everything.stderr == ""


def test_ls_shows_a_damaged_run_among_the_others(shell: Shell) -> None:
    path = shell.folder / "runs.db"
    asyncio.run(submit_runs(path, 3))
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE runs SET labels = '{' WHERE run_id = 'r1'")
    connection.close()
    runs = shell.json("ls")["runs"]
    assert [(run["run_id"], run["status"]) for run in runs] == [("r2", "queued"), ("r1", "parked"), ("r0", "queued")]
    assert runs[1]["reason"].startswith("damaged: its record is not what was written")
    shown = shell.run("show", "r1")
    assert (shown.returncode, "its record is not what was written" in shown.stderr) == (1, True)


async def submit_runs(path: Path, count: int) -> None:
    agent = sample.agent
    async with App([agent], f"sqlite:{path}", worker=False) as app:
        for number in range(count):
            await app.submit(agent, "note", run_id=f"r{number}")


def test_ls_as_a_table(shell: Shell) -> None:
    assert "there is no store at runs.db" in shell.run("ls").stderr
    shell.ok("submit", "sampler", "note", "--run-id", "r1")
    head, row = shell.ok("ls").splitlines()
    assert head.split() == ["RUN", "STATUS", "AGENT", "AGE", "STEPS", "TOKENS", "COST", "SIZE", "DETAILS"]
    assert row.split()[:3] == ["r1", "queued", "sampler"]
    terminal = shell.terminal("ls")
    assert terminal.finish() == 0
    assert "\x1b[36mqueued\x1b[0m" in terminal.raw
    shell.run("run", "sample:agent", "boom", "--run-id", "r2-with-an-id-that-takes-much-of-the-width")
    terminal = shell.terminal("ls")
    assert terminal.finish() == 0
    assert ["r1" in line or "r2" in line for line in terminal.text.strip().splitlines()] == [False, True, True]
    assert "RuntimeError: the mod" in terminal.text
    shell.ok("rm", "-f", "r1", "r2-with-an-id-that-takes-much-of-the-width")
    assert shell.ok("ls") == "no runs\n"


def test_show_tells_a_run_without_its_agents_code(shell: Shell) -> None:
    process = shell.start("run", "sample:agent", "send+fail note transfer", "--run-id", "r1")
    shell.wait_for_effect("transfer c3-1")
    kill(process)
    shown = shell.run("show", "r1", PYTHONPATH=str(SOURCE))
    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == "run      r1"
    assert re.fullmatch("status   interrupted: worker w-[0-9a-f]+ died; ready for another worker", lines[1])
    assert "failed   1 call" in lines
    assert "user: send+fail note transfer" in lines
    assert "model: thinking about send+fail" in lines
    assert "  send(text=1) c1-1" in lines
    assert "  send c1-1 done: sent 1" in lines
    assert "  fail c1-2 error: ValueError: this never works" in lines
    assert any(line.startswith("--- step 1 finished at ") for line in lines)
    assert lines[-1] == "in doubt: transfer(text=3) c3-1"


def test_show_as_json(shell: Shell) -> None:
    shell.ok("submit", "sampler", "send+fail note", "--run-id", "r1")
    shell.ok("recover", "sample:app", "-q")
    shown = shell.json("show", "r1", "--app", "sample:app")
    assert shown["run"]["status"] == "done"
    assert [item["kind"] for item in shown["transcript"]] == [
        "user",
        "reply",
        "result",
        "result",
        "reply",
        "result",
        "reply",
    ]
    assert [(call["tool"], call["effect"], call["state"], call["result"]) for call in shown["calls"]] == [
        ("send", "once", "done", "sent 1"),
        ("fail", "once", "error", "ValueError: this never works"),
        ("note", "pure", "done", "noted 2"),
    ]
    assert [(step["step"], step["tokens"]) for step in shown["timeline"]] == [(1, 15), (2, 30), (3, 45)]
    assert shown["outcome"] == {"output": "done: send+fail note", "error": None}


def test_show_tells_calls_apart_whose_ids_are_used_again(shell: Shell) -> None:
    shell.ok("submit", "forgetful", "send fail send", "--run-id", "r1")
    shell.ok("recover", "forgetful:agent", "-q")
    shown = shell.json("show", "r1")
    assert [(call["call_id"], call["tool"], call["state"], call["result"]) for call in shown["calls"]] == [
        ("c", "send", "done", "sent 1"),
        ("c", "fail", "error", "ValueError: this never works"),
        ("c", "send", "done", "sent 3"),
    ]


def test_show_has_phases_and_children(shell: Shell) -> None:
    process = shell.start("run", "sample:phased", "delegate gate", "--run-id", "r1")
    shell.wait_for_effect("gate c2-1")
    kill(process)
    shown = shell.json("show", "r1")
    assert shown["phases"] == [{"name": "draft", "output": "done: note", "step": 2}]
    assert [(child["agent"], child["status"], child["parent"]) for child in shown["children"]] == [
        ("helper", "done", "r1")
    ]
    assert "phase draft: done: note" in shell.ok("show", "r1").splitlines()


def test_show_reads_runs_of_pydantic_ai_without_their_code(shell: Shell) -> None:
    asyncio.run(run_until_approval(shell.folder / "runs.db"))
    shown = shell.run("show", "r1", PYTHONPATH=str(SOURCE))
    lines = shown.stdout.splitlines()
    assert re.fullmatch(r"status   waiting: waits for approval of pay\(amount=40\), .* so far, and 1 more.*", lines[1])
    start = lines.index("system: You book.")
    assert [line for line in lines[start:] if not line.startswith("---")] == [
        "system: You book.",
        "user: book",
        "thinking: search first",
        "model: Let me look.",
        "  lookup(word=Lisbon) c1",
        "  lookup(word=) c2",
        '  lookup c1 done: {"found":"Lisbon"}',
        "  lookup c2 error: give a word",
        "  pay(amount=40) c3",
        "  pay(amount=5) c4",
        "",
        "needs approval: pay(amount=40) c3",
        "needs approval: pay(amount=5) c4",
    ]
    assert "approve with: holdfast approve r1 c3\napprove with: holdfast approve r1 c4\n" in shown.stderr
    calls = shell.json("show", "r1")["calls"]
    assert [(call["arguments"], call["state"], call["result"]) for call in calls] == [
        ({"word": "Lisbon"}, "done", {"found": "Lisbon"}),
        ({"word": ""}, "error", "give a word"),
        ({"amount": 40}, "needs approval", None),
        ({"amount": 5}, "needs approval", None),
    ]


async def run_until_approval(path: Path) -> None:
    agent = durable(approving.agent)
    async with App([agent], f"sqlite:{path}", worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "book", run_id="r1")


def test_show_prints_who_decided_what(shell: Shell) -> None:
    asyncio.run(run_until_approval(shell.folder / "runs.db"))
    shell.ok("approve", "r1", "c3", "--set", "amount=30", "--by", "ann", "--comment", "less")
    shell.ok("deny", "r1", "c4", "--reason", "too little", "--by", "bob")
    asyncio.run(finish(shell.folder / "runs.db"))
    lines = [re.sub(" at [-0-9]+ [0-9:]+", "", line) for line in shell.ok("show", "r1").splitlines()]
    start = lines.index("  pay(amount=30) c3")
    assert lines[start : start + 6] == [
        "  pay(amount=30) c3",
        '    approved with {"amount":30} by ann via cli: less, instead of {"amount":40}',
        "  pay(amount=5) c4",
        "    denied by bob via cli: too little",
        "  pay c3 done: paid 30",
        "  pay c4 error: too little",
    ]
    # It waited, and then ended, in two processes; pydantic-ai's runs have attempts like any others.
    start = next(at for at, line in enumerate(lines) if line.startswith("ATTEMPT"))
    assert [(line.split()[0], line.split()[-1]) for line in lines[start + 1 : start + 3]] == [
        ("1", "waiting"),
        ("2", "done"),
    ]


async def finish(path: Path) -> None:
    agent = durable(approving.agent)
    async with App([agent], f"sqlite:{path}", worker=False) as app:
        assert (await app.resume("r1")).output == "Booked."


def test_export_gives_every_entry(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "r1")
    shell.ok("recover", "sample:app", "-q")
    run, *entries = [json.loads(line) for line in shell.ok("export", "r1").splitlines()]
    assert (run["kind"], run["run_id"], run["status"]) == ("run", "r1", "done")
    assert [entry["seq"] for entry in entries] == list(range(len(entries)))
    assert entries[0]["kind"] == "begin"
    assert entries[0]["body"]["info"]["prompt"] == "note"
    assert entries[-1] == {
        "kind": "outcome", "seq": len(entries) - 1, "body": {"output": "done: note", "usage": run_usage(2, 1)},
    }  # fmt: skip


def run_usage(requests: int, calls: int) -> dict[str, object]:
    return {
        "input_tokens": 10 * requests, "output_tokens": 5 * requests, "requests": requests, "tool_calls": calls,
        "cost_usd": 0.001 * requests,
    }  # fmt: skip


def test_stored_text_cannot_take_over_the_terminal(shell: Shell) -> None:
    unsafe = "\x1b[2J\x7f\x9b31m\u202eabc\u2066\u2028\U000e0041"
    shell.ok("submit", "sampler", f"{unsafe}note ünïcødé 👩‍🚀", "--run-id", "r1")
    for command in (["show", "r1"], ["show", "r1", "--json"], ["ls", "--json"], ["export", "r1"]):
        printed = shell.ok(*command)
        assert not set(printed) & set(unsafe) - set("[2J31mabc"), command
        assert "ünïcødé 👩‍🚀" in printed
    assert shell.json("ls")["runs"][0]["prompt"] == f"{unsafe}note ünïcødé 👩‍🚀"
    begin = json.loads(shell.ok("export", "r1").splitlines()[1])
    assert begin["body"]["info"]["prompt"] == f"{unsafe}note ünïcødé 👩‍🚀"
    assert f"{unsafe}note" in shell.ok("results"), "a file gets the text as it is"
    terminal = shell.terminal("results")
    assert terminal.finish() == 0
    assert not set(terminal.raw) & set(unsafe) - set("[2J31mabc")


def test_finished_runs_are_shown_exported_and_forked(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shell.folder)
    asyncio.run(finish_runs(shell.folder / "runs.db"))
    for run_id, status, last in [
        ("good", "done", "answer: done: note"),
        ("bad", "failed: RuntimeError: the model is down", "error: RuntimeError: the model is down"),
        ("ended", "cancelled", "error: RunCancelled: run ended was cancelled"),
    ]:
        lines = shell.ok("show", run_id).splitlines()
        assert lines[1].startswith(f"status   {status}")
        assert any(line.startswith("expires  ") and ", in " in line for line in lines), run_id
        assert lines[-1] == last
    assert json.loads(shell.ok("export", "bad").splitlines()[-1])["kind"] == "outcome"
    shell.ok("fork", "good", "--at", "1", "--run-id", "again")
    assert [run["run_id"] for run in shell.json("ls", "--status", "failed", "--status", "queued")["runs"]] == [
        "again",
        "bad",
    ]


async def finish_runs(path: Path) -> None:
    agent = sample.agent
    async with App([agent], f"sqlite:{path}", worker=False) as app:
        await app.submit(agent, "note", run_id="good")
        await app.resume("good")
        await app.submit(agent, "boom", run_id="bad")
        with pytest.raises(RunFailed):
            await app.resume("bad")
        await app.submit(agent, "note", run_id="ended")
        await app.cancel("ended")


def test_show_says_how_often_a_run_was_retried_and_when_it_resumes(shell: Shell) -> None:
    calls = 0

    async def model(messages: Sequence[object], tools: Sequence[object]) -> Reply:
        nonlocal calls
        calls += 1
        if calls in (2, 3):
            return Reply(tool_calls=[ToolCall(id=f"c{calls}", name="look")])
        raise ModelUnavailable("away")

    @tool(effect="pure")
    async def look() -> str:
        return "seen"

    async def run() -> None:
        agent = Agent(name="a", model=model, tools=[look], retry=Retry(max_tries=2, initial_delay=timedelta(0)))
        async with App([agent], f"sqlite:{shell.folder / 'runs.db'}", worker=False) as app:
            await app.submit(agent, "go", run_id="r1")
            await app.recover()

    asyncio.run(run())
    lines = shell.ok("show", "r1").splitlines()
    assert any(line.startswith("status   interrupted: retries after ModelUnavailable: away in ") for line in lines)
    assert any(line.startswith("reason   run r1 waits for its model after 2 attempts") for line in lines)
    assert "retries  2, last after ModelUnavailable: away" in lines
    steps = [line for line in lines if line.startswith("--- step")]
    assert ["1 retry" in line for line in steps] == [True, False]
    shown = shell.json("show", "r1")
    assert (shown["run"]["retries"], shown["run"]["retry_error"]) == (2, "ModelUnavailable: away")
    assert [step["retries"] for step in shown["timeline"]] == [1, 1]


def test_submit_refuses_the_labels_of_holdfast(shell: Shell) -> None:
    refused = shell.run("submit", "other", "hi", "--label", "holdfast.forked_from=r1")
    assert refused.returncode != 0
    assert "is set by holdfast" in refused.stderr
    assert "Traceback" not in refused.stderr
