"""holdfast cancel, unpark, fork and rm."""

import json
import re

from tests.cli.shell import Shell, kill


def test_cancel_ends_a_run_that_nobody_drives(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "r1")
    assert shell.ok("cancel", "r1") == "run r1 is cancelled\n"
    assert shell.states() == {"r1": "cancelled"}
    again = shell.run("cancel", "r1")
    assert again.returncode == 1
    assert "run r1 is cancelled" in again.stderr


def test_a_call_in_doubt_parks_the_run_until_a_person_answers(shell: Shell) -> None:
    process = shell.start("run", "sample:agent", "transfer send", "--run-id", "r1")
    shell.wait_for_effect("transfer c1-1")
    kill(process)
    parked = shell.run("resume", "sample:agent", "r1", "-q", "--json")
    assert parked.returncode == 1
    ending = json.loads(parked.stdout)
    assert ending["status"] == "parked"
    assert ending["reason"] == "in doubt: call c1-1 of transfer may or may not have happened"
    assert "holdfast unpark --resolve CALL=RESULT r1" in parked.stderr
    assert [call["state"] for call in shell.json("show", "r1")["calls"]] == ["in doubt"]
    assert "no pending call has the id" in shell.run("unpark", "r1", "--resolve", "c9=no").stderr
    assert shell.states() == {"r1": "parked"}
    assert (
        shell.ok("unpark", "r1", "--resolve", 'c1-1={"amount": 3}')
        == "run r1 is interrupted: a worker or holdfast resume continues it\n"
    )
    assert shell.ok("resume", "sample:agent", "r1", "-q") == "done: transfer send\n"
    assert shell.read_effects() == ["transfer c1-1", "send c2-1"]


def test_a_call_in_doubt_that_did_not_happen_is_made(shell: Shell) -> None:
    process = shell.start("run", "sample:agent", "transfer", "--run-id", "r1")
    shell.wait_for_effect("transfer c1-1")
    kill(process)
    assert shell.run("resume", "sample:agent", "r1", "-q").returncode == 1
    shell.ok("unpark", "r1", "--make", "c1-1", "--by", "ann")
    shell.open_gate()
    assert shell.ok("resume", "sample:agent", "r1", "-q") == "done: transfer\n"
    assert shell.read_effects() == ["transfer c1-1", "transfer c1-1"]
    events = [json.loads(line) for line in shell.ok("tail", "r1", "--json").splitlines()]
    [decision] = [event["decision"] for event in events if event["type"] == "decision"]
    assert (decision["by"], decision["via"]) == ("ann", "cli")
    assert decision["comment"] == "it did not happen, and is made now"


def test_fork_begins_anew_after_a_step(shell: Shell) -> None:
    shell.ok("submit", "sampler", "send note send", "--run-id", "r1")
    shell.ok("recover", "sample:app", "-q")
    assert shell.read_effects() == ["send c1-1", "note c2-1", "send c3-1"]
    assert shell.ok("fork", "r1", "--at", "2", "--run-id", "r2") == "r2\n"
    assert shell.json("fork", "r1", "--at", "1", "--run-id", "r3") == {
        "run_id": "r3", "status": "queued", "forked_from": "r1", "at": 1,
    }  # fmt: skip
    assert shell.ok("resume", "sample:app", "r2", "-q") == "done: send note send\n"
    assert shell.read_effects()[3:] == ["send c3-1"]
    edited = shell.ok("fork", "r1", "--at", "1", "--edit", "note note").strip()
    assert shell.ok("resume", "sample:app", edited, "-q") == "done: note note\n"
    shell.ok("fork", "r1", "--at", "1", "--result", 'c1-1={"id": 5}', "--run-id", "r4")
    [result] = [each for each in shell.json("show", "r4")["calls"] if each["call_id"] == "c1-1"]
    assert result["result"] == {"id": 5}
    missing = shell.run("fork", "r1", "--at", "9")
    assert missing.returncode == 1
    assert "cannot be forked at step 9: its journal has 1, 2, 3, 4" in missing.stderr


def test_rm_asks_for_force_before_it_takes_work_away(shell: Shell) -> None:
    shell.ok("submit", "sampler", "note", "--run-id", "over")
    shell.ok("recover", "sample:app", "-q")
    shell.ok("submit", "sampler", "note", "--run-id", "waiting")
    refused = shell.run("rm", "over", "waiting")
    assert refused.returncode == 1
    assert "run waiting is queued and could be resumed" in refused.stderr
    assert shell.states() == {"over": "done", "waiting": "queued"}
    assert shell.ok("rm", "over") == "run over is removed\n"
    assert shell.json("rm", "-f", "waiting") == {"removed": ["waiting"]}
    assert shell.states() == {}


def test_a_filter_takes_many_runs_after_a_question(shell: Shell) -> None:
    for number in range(3):
        shell.ok("submit", "sampler", f"note {number}", "--run-id", f"r{number}", "--label", "batch=7")
    shell.ok("submit", "sampler", "note", "--run-id", "other")
    refused = shell.run("cancel", "--label", "batch=7")
    assert refused.returncode == 2
    assert "3  sampler, queued" in refused.stderr
    assert "Cancel 3 runs? Add --yes to do it" in refused.stderr
    asked = shell.terminal("cancel", "--label", "batch=7")
    asked.wait_for("Cancel 3 runs? [y/N]")
    asked.type("n\n")
    assert asked.finish() == 1
    assert set(shell.states().values()) == {"queued"}
    asked = shell.terminal("cancel", "--label", "batch=7")
    asked.wait_for("Cancel 3 runs? [y/N]")
    asked.type("y\n")
    assert asked.finish() == 0
    assert shell.states() == {"r0": "cancelled", "r1": "cancelled", "r2": "cancelled", "other": "queued"}
    assert shell.ok("cancel", "--label", "batch=7", "--yes") == "no matching run\n"


def test_cancelled_and_parked_runs_are_left_to_the_workers_by_filter(shell: Shell) -> None:
    for number in range(2):
        shell.ok("submit", "sampler", f"note {number}", "--run-id", f"r{number}")
    shell.ok("cancel", "--agent", "sampler", "--yes")
    assert json.loads(shell.ok("resume", "--status", "cancelled", "--yes", "--json")) == {
        "done": ["r0", "r1"],
        "refused": {},
    }
    assert shell.states() == {"r0": "interrupted", "r1": "interrupted"}
    process = shell.start("run", "sample:agent", "transfer", "--run-id", "p")
    shell.wait_for_effect("transfer c1-1")
    kill(process)
    assert shell.run("resume", "sample:agent", "p", "-q").returncode == 1
    assert "one run: name it" in shell.run("unpark", "--agent", "sampler", "--make", "c1-1", "--yes").stderr
    assert shell.ok("unpark", "--agent", "sampler", "--by", "ann", "--yes") == "1 run unparked\n"
    assert shell.states()["p"] == "interrupted"
    assert shell.ok("resume", "sample:agent", "p", "-q") == "done: transfer\n"
    events = [json.loads(line) for line in shell.ok("tail", "p", "--json").splitlines()]
    assert [event["decision"]["by"] for event in events if event["type"] == "decision"] == ["ann"]


def test_a_command_needs_a_run_or_a_filter(shell: Shell) -> None:
    for command in ("cancel", "unpark"):
        assert "name a run, or give a filter such as --agent NAME" in shell.run(command).stderr
        both = shell.run(command, "r1", "--agent", "sampler")
        assert (both.returncode, "name the run r1, or give a filter (agent), not both" in both.stderr) == (2, True)
    assert "not both" in shell.run("resume", "sample:agent", "--agent", "sampler").stderr


WORKFLOW = """
from holdfast import App, tool
from holdfast.workflows import workflow

@tool
async def price(item: str) -> int:
    return 7

@workflow
async def buy(item: str) -> str:
    return f"{item} for {await price(item)}"

app = App([buy], "sqlite:runs.db")
"""


def test_a_workflow_is_forked_at_a_call_with_another_result(shell: Shell) -> None:
    (shell.folder / "shop.py").write_text(WORKFLOW)
    assert "tea for 7" in shell.ok("run", "shop:buy", "tea", "--run-id", "r1")
    [call_id] = set(re.findall(r"price:\w+:1", shell.ok("show", "r1", "--json")))
    shell.ok("fork", "r1", "--at", "1", "--result", f"{call_id}=9", "--app", "shop:app", "--run-id", "r2")
    assert "tea for 9" in shell.ok("resume", "shop:buy", "r2")
