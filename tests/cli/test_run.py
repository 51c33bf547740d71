"""holdfast run, resume and recover."""

import json
import shlex
import signal

import pytest
from tests.cli.shell import Shell, kill, line_with

from holdfast.cli.options import parse_inputs
from holdfast.cli.output import UsageError


def test_the_answer_is_on_stdout_and_the_talk_on_stderr(shell: Shell) -> None:
    done = shell.run("run", "sample:agent", "note+send note", "--run-id", "r1")
    assert (done.returncode, done.stdout) == (0, "done: note+send note\n")
    stderr = done.stderr.splitlines()
    assert stderr[0] == "run r1 of sampler"
    assert "step 1: note started" in stderr
    assert any(line.startswith("step 1: send done in ") for line in stderr)
    assert any(line.startswith("step 3: model answered in ") for line in stderr)
    assert "\x1b" not in done.stderr
    assert shell.states() == {"r1": "done"}


def test_the_id_of_a_finished_run_returns_its_result_and_repeats_nothing(shell: Shell) -> None:
    run = ["run", "sample:agent", "send note", "--run-id", "r1"]
    first = shell.json(*run, "-q")
    for again in (run, ["resume", "sample:agent", "r1"]):
        done = shell.run(*again, "--json")
        assert json.loads(done.stdout) == first
        assert done.stderr == "run r1 of sampler\nthe run is done: this is its recorded result\n"
    assert shell.read_effects() == ["send c1-1", "note c2-1"]
    other = shell.run("run", "sample:agent", "send", "--run-id", "r1")
    assert other.returncode == 1
    assert "run r1 exists with another agent, prompt or inputs" in other.stderr


def test_the_result_as_json(shell: Shell) -> None:
    ending = shell.json("run", "sample:agent", "note send", "--run-id", "r1", "--quiet")
    assert ending["usage"].pop("cost_usd") == pytest.approx(0.003)
    assert ending == {
        "run_id": "r1",
        "status": "done",
        "output": "done: note send",
        "steps": 3,
        "usage": {"input_tokens": 30, "output_tokens": 15, "requests": 3, "tool_calls": 2},
        "reason": "",
        "resume": "",
        "unpark": "",
        "waits": [],
    }


def test_a_prompt_is_read_from_stdin(shell: Shell) -> None:
    assert shell.ok("run", "sample:agent", "-", "-q", stdin="note note\n") == "done: note note\n"


def test_inputs_are_part_of_the_request(shell: Shell) -> None:
    inputs = ["--input", 'customer={"id": 7}', "--input", "note=as text"]
    shell.ok("submit", "sampler", "note", "--run-id", "r1", *inputs)
    other = shell.run("run", "sample:agent", "note", "--run-id", "r1", "--input", 'customer={"id": 8}')
    assert other.returncode == 1
    assert "r1" in other.stderr
    assert shell.ok("run", "sample:agent", "note", "--run-id", "r1", "-q", *inputs) == "done: note\n"


def test_an_input_is_json_or_else_text() -> None:
    assert parse_inputs(['a={"b": [1]}', "c=as text", "d=7"]) == {"a": {"b": [1]}, "c": "as text", "d": 7}
    for wrong in ("a", "=1", "prompt=x"):
        with pytest.raises(UsageError):
            parse_inputs([wrong])


def test_an_app_with_several_agents_needs_a_name(shell: Shell) -> None:
    done = shell.run("run", "sample:app", "note")
    assert done.returncode == 2
    assert "--agent: compacting, other, phased, sampler" in done.stderr
    assert shell.ok("run", "sample:app", "note", "--agent", "other", "-q") == "done: note\n"


def test_ctrl_c_leaves_a_run_and_says_how_to_go_on(shell: Shell) -> None:
    terminal = shell.terminal("run", "sample:agent", "send gate send", "--run-id", "r1")
    shell.wait_for_effect("gate c2-1")
    terminal.wait_for("step 2: gate")  # in progress, at the bottom of the screen
    terminal.type("\x03")
    terminal.wait_for("stopping after the current step")
    shell.open_gate()
    assert terminal.finish() == 130
    assert shell.states() == {"r1": "interrupted"}
    before, _, hint = terminal.text.splitlines()[-1].partition("; resume with: ")
    assert before.endswith("run r1 interrupted after step 2")
    command = shlex.split(hint)
    assert command == ["holdfast", "resume", "sample:agent", "r1"]
    assert shell.ok(*command[1:], "--quiet") == "done: send gate send\n"
    assert shell.read_effects() == ["send c1-1", "gate c2-1", "send c3-1"]


def test_a_second_ctrl_c_stops_at_once_and_the_run_stays(shell: Shell) -> None:
    terminal = shell.terminal("run", "sample:agent", "send gate", "--run-id", "r1")
    shell.wait_for_effect("gate c2-1")
    terminal.type("\x03")
    terminal.wait_for("stopping after the current step")
    terminal.type("\x03")
    assert terminal.finish() == 130
    assert "stopped immediately. Resume with: holdfast resume sample:agent r1" in terminal.text
    assert terminal.raw.rindex("\x1b[?25h") > terminal.raw.rindex("\x1b[?25l")  # the cursor is back
    assert shell.states() == {"r1": "interrupted"}
    shell.open_gate()
    assert shell.ok("resume", "sample:agent", "-q") == "done: send gate\n"
    assert shell.read_effects().count("send c1-1") == 1


def test_a_run_that_another_process_executes_is_waited_for(shell: Shell) -> None:
    first = shell.start("run", "sample:agent", "send gate", "--run-id", "r1")
    shell.wait_for_effect("gate c2-1")
    second = shell.start("run", "sample:agent", "send gate", "--run-id", "r1")
    line_with(second.stderr, "another worker executes the run: waiting for its result")
    shell.open_gate()
    assert [process.communicate()[0] for process in (first, second)] == ["done: send gate\n"] * 2
    assert shell.read_effects() == ["send c1-1", "gate c2-1"]


def test_ctrl_c_while_the_provider_is_down_says_how_to_go_on(shell: Shell) -> None:
    process = shell.start("run", "outage:agent", "hello", "--run-id", "r1")
    line_with(process.stderr, "step 1: try 1 of the model failed, next in 0 ms: ModelUnavailable: 503")
    line_with(process.stderr, "run r1 waits for its model after 2 attempts, and resumes after 30 seconds")
    process.send_signal(signal.SIGINT)
    line_with(process.stderr, "run r1 interrupted; resume with: holdfast resume outage:agent r1")
    assert process.wait() == 130
    assert shell.states() == {"r1": "interrupted"}


def test_a_killed_run_is_interrupted_and_goes_on_without_repeating(shell: Shell) -> None:
    process = shell.start("run", "sample:agent", "send note+gate note", "--run-id", "r1")
    shell.wait_for_effect("gate c2-2")
    kill(process)
    assert shell.states() == {"r1": "interrupted"}
    shell.open_gate()
    done = shell.run("resume", "sample:agent", "r1")
    assert (done.returncode, done.stdout) == (0, "done: send note+gate note\n")
    assert "resumed after step 1" in done.stderr
    assert shell.read_effects().count("send c1-1") == 1


def test_a_failed_run_is_kept_and_can_be_resumed(shell: Shell) -> None:
    done = shell.run("run", "sample:agent", "send boom note", "--run-id", "r1", "--json")
    assert done.returncode == 1
    ending = json.loads(done.stdout)
    assert (ending["status"], ending["reason"]) == ("failed", "RuntimeError: the model is down")
    assert "Traceback" not in done.stderr
    assert ending["resume"] == "holdfast resume sample:agent r1"
    assert shell.states() == {"r1": "failed"}
    again = shell.run("run", "sample:agent", "send boom note", "--run-id", "r1", "-q")
    assert again.returncode == 1
    assert "run r1 failed: RuntimeError: the model is down" in again.stderr.splitlines()
    (shell.folder / "repaired").touch()
    assert shell.ok("resume", "sample:agent", "r1", "-q") == "done: send boom note\n"
    assert shell.read_effects() == ["send c1-1", "note c2-1", "note c3-1"]


def test_an_app_that_keeps_no_failed_runs_promises_none(shell: Shell) -> None:
    done = shell.run("run", "sample:forgetting", "boom", "--json", "-q")
    assert json.loads(done.stdout)["resume"] == ""
    assert shell.states() == {}


def test_a_run_without_a_store_says_so(shell: Shell) -> None:
    done = shell.run("run", "sample:in_memory", "note", "-q")
    assert (done.returncode, done.stdout) == (0, "done: note\n")
    assert "no store" in done.stderr


def test_the_store_of_the_option_wins_and_is_in_the_hint(shell: Shell) -> None:
    process = shell.start(
        "run", "sample:app", "gate", "--agent", "other", "--run-id", "r1", "--store", "sqlite:elsewhere.db"
    )
    shell.wait_for_effect("gate c1-1")
    process.send_signal(signal.SIGTERM)
    line_with(process.stderr, "stopping after the current step")
    shell.open_gate()
    assert "holdfast resume sample:app r1 --store sqlite:elsewhere.db" in line_with(process.stderr, "resume with")
    assert process.wait() == 143
    assert [run["status"] for run in shell.json("ls", "--store", "sqlite:elsewhere.db")["runs"]] == ["interrupted"]


def test_an_agent_of_pydantic_ai_needs_nothing_more(shell: Shell) -> None:
    process = shell.start("run", "foreign:agent", "hello", "--run-id", "r1")
    shell.wait_for_effect("gate")
    shell.wait_for_entry("r1", "found a")  # the result of the other call of the batch
    kill(process)
    shell.open_gate()
    assert shell.ok("resume", "foreign:agent", "r1", "-q") == '{"lookup":"found a","gate":"open"}\n'
    assert shell.read_effects().count("lookup") == 1


def test_a_bare_model_needs_no_code(shell: Shell) -> None:
    ending = shell.json("run", "--model", "test", "hello")
    assert (ending["status"], ending["output"]) == ("done", "success (no tool calls)")
    assert shell.run("run", "--model", "openai:gpt-5", "hello").stderr.startswith("holdfast: --model openai:gpt-5: ")
    shell.ok("submit", "test", "hello", "--run-id", "r1")
    assert shell.ok("resume", "--model", "test", "r1", "-q") == "success (no tool calls)\n"


def test_resume_without_a_run_wants_exactly_one(shell: Shell) -> None:
    assert "there is no store at runs.db" in shell.run("resume", "sample:agent").stderr
    for run_id in ("r1", "r2"):
        shell.ok("submit", "sampler", "note", "--run-id", run_id)
    done = shell.run("resume", "sample:agent")
    assert done.returncode == 2
    assert "2 runs are interrupted (r1, r2)" in done.stderr
    shell.ok("rm", "--force", "r2")
    assert shell.ok("resume", "sample:agent", "-q") == "done: note\n"
    done = shell.run("resume", "sample:agent")
    assert (done.returncode, done.stderr) == (1, "holdfast: no run of sampler is interrupted\n")


def test_resume_needs_the_agent_to_be_named(shell: Shell) -> None:
    done = shell.run("resume", "r1")
    assert (done.returncode, done.stderr) == (2, "holdfast: name the agent: holdfast resume MODULE:AGENT r1\n")


def test_recover_goes_on_with_all_that_it_knows(shell: Shell) -> None:
    for run_id, agent, prompt in [("r1", "sampler", "note"), ("r2", "other", "send"), ("r3", "stranger", "note")]:
        shell.ok("submit", agent, prompt, "--run-id", run_id)
    done = shell.run("recover", "sample:app")
    assert (done.returncode, done.stdout) == (0, "recovered 2 runs: 2 completed\n")
    assert any(line.startswith("r2 (other) step 1: send done") for line in done.stderr.splitlines())
    assert shell.states() == {"r1": "done", "r2": "done", "r3": "queued"}
    assert shell.ok("recover", "sample:app") == "nothing to recover\n"


def test_recover_tells_of_failures_as_json_and_by_its_exit_code(shell: Shell) -> None:
    shell.ok("submit", "sampler", "boom", "--run-id", "r1")
    done = shell.run("recover", "sample:app", "--json", "-q")
    assert done.returncode == 1
    runs = [{"run_id": "r1", "status": "failed", "reason": "RuntimeError: the model is down"}]
    assert json.loads(done.stdout) == {"runs": runs, "delayed": []}
