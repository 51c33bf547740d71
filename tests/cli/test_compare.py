"""`holdfast compare`: live, stopped, killed, resumed, applied."""

import asyncio
import json
import signal
import subprocess
from pathlib import Path

from tests.cli.shell import COMMAND, Shell, kill, line_with, until

from holdfast.cli.opening import open_store
from holdfast.runtime.operations.verdicts import PICK, record_verdict

TWO = ["--agent", "rivals:quick", "--agent", "rivals:slow"]

RECIPE = """---
agents: [rivals:quick, rivals:slow]
tools: [files]
tasks:
  - name: greet
    prompt: Say hello.
    success:
      - contains: {path: hello.txt, text: quick}
  - name: again
    prompt: Say it again.
success:
  - file_exists: hello.txt
  - run: grep -q hello hello.txt
    seconds: 20
---

You greet people.
"""


def requests(shell: Shell) -> list[str]:
    path = shell.folder / "requests"
    return path.read_text().splitlines() if path.exists() else []


def work(shell: Shell) -> Path:
    path = shell.folder / "work"
    path.mkdir()
    return path


def test_a_comparison_prints_answers_and_figures(shell: Shell) -> None:
    shell.open_gate()
    done = shell.run("compare", "Say hello.", *TWO)
    output = done.stdout
    assert "== rivals:quick\nquick says hello\n" in output
    row = next(line for line in output.splitlines() if line.startswith("rivals:slow"))
    assert row.split() == ["rivals:slow", "completed", *row.split()[2:4], "10", "2", "0", "$0.5000", "0", "0"]
    [run_id] = [run_id for run_id in shell.states() if ":" not in run_id]
    assert (done.returncode, set(shell.states().values())) == (0, {"done"}), "the answers stay readable"
    assert f"pick one: holdfast ui, run {run_id}" in done.stderr
    assert "picked" not in output
    asyncio.run(pick(shell, run_id, "rivals:quick"))
    assert "picked   rivals:quick by ann, " in shell.ok("show", run_id)
    pick_shown = shell.json("show", run_id)["pick"]
    assert pick_shown["value"] == "rivals:quick"
    asked = requests(shell)
    again = shell.run("compare", "--resume")
    assert "\npicked rivals:quick by ann, " in again.stdout
    assert "pick one" not in again.stderr
    report = shell.json("compare", "--resume")
    assert (report["run_id"], report["pick"]) == (run_id, pick_shown)
    assert requests(shell) == asked, "the models are not called again"


async def pick(shell: Shell, run_id: str, result: str) -> None:
    async with open_store(f"sqlite:{shell.folder / 'runs.db'}") as store:
        await record_verdict(store, run_id, PICK, result, by="ann")


def test_a_failed_model_is_told_and_the_command_fails(shell: Shell) -> None:
    done = shell.run("compare", "Say hello.", "--agent", "rivals:quick", "--agent", "rivals:bad", "--json")
    assert done.returncode == 1
    rows = json.loads(done.stdout)["rows"]
    assert [(row["status"], row["error"]) for row in rows] == [
        ("completed", ""),
        ("failed", "ZeroDivisionError: division by zero"),
    ]


def test_ctrl_c_stops_it_and_resume_asks_nobody_twice(shell: Shell) -> None:
    command = ["compare", "Say hello.", *TWO, "--folder", str(work(shell))]
    process = shell.start(*command)
    until(lambda: {"slow 1", "quick 1"} <= set(requests(shell)), "both models to be asked")
    until(lambda: "done" in shell.states().values(), "the quick one to be done")
    process.send_signal(signal.SIGINT)
    # The command waits for the current turn.
    shell.open_gate()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert stderr.splitlines()[-1] == "resume with: holdfast compare --resume"
    assert "interrupted" in stdout
    shell.ok("compare", "--resume")
    assert sorted(requests(shell)) == ["quick 0", "quick 1", "slow 0", "slow 1", "slow 2"]


def test_what_was_killed_is_not_thrown_away_unasked_and_goes_on(shell: Shell) -> None:
    command = ["compare", "Say hello.", *TWO, "--folder", str(work(shell))]
    process = shell.start(*command)
    until(lambda: "slow 1" in requests(shell) and "done" in shell.states().values(), "the quick one to be done")
    kill(process)
    assert process.stderr is not None
    assert process.stderr.readline() == "if this is interrupted, resume with: holdfast compare --resume\n"
    refused = shell.run(*command)
    assert (refused.returncode, refused.stderr) == (
        1,
        "holdfast: a comparison was interrupted: resume it with `holdfast compare --resume`, "
        "or discard it with --fresh\n",
    )
    shell.open_gate()
    rows = json.loads(shell.ok("compare", "--resume", "--json"))["rows"]
    assert [(row["status"], row["cost_usd"], row["writes"]) for row in rows] == [
        ("completed", 1.0, ["+hello.txt"]),
        ("completed", 1.5, ["+hello.txt"]),
    ]
    assert sorted(requests(shell)) == ["quick 0", "quick 1", "slow 0", "slow 1", "slow 1", "slow 2"]
    # Once more: what has ended is shown, and no model is called.
    shell.ok(*command, "--resume")
    assert len(requests(shell)) == 6
    shell.ok(*command)
    assert len(requests(shell)) == 11


def interrupt(shell: Shell, *command: str) -> None:
    """Start a comparison and kill it while the slow model is asked for the second time."""
    before = requests(shell).count("slow 1")
    process = shell.start(*command)
    until(lambda: requests(shell).count("slow 1") > before, "the slow one to be asked")
    kill(process)


def test_a_recipe_is_resumed_or_discarded_with_all_its_tasks(shell: Shell) -> None:
    (shell.folder / "recipe.md").write_text(RECIPE)
    command = ["compare", "--recipe", "recipe.md", "--folder", str(work(shell)), "--name", "greetings"]
    interrupt(shell, *command)
    refused = shell.run("compare", "Something else.", *TWO, "--name", "greetings")
    assert refused.returncode == 1
    assert "resume it with `holdfast compare --resume --name greetings`" in refused.stderr
    shell.open_gate()
    reports = json.loads(shell.ok("compare", "--resume", "--name", "greetings", "--json"))
    assert [[row["status"] for row in report["rows"]] for report in reports] == [["completed"] * 2] * 2
    (shell.folder / "open").unlink()
    interrupt(shell, *command)
    shell.open_gate()
    assert shell.states() != {}
    shell.ok("compare", "Something else.", *TWO, "--name", "greetings", "--fresh")
    assert set(shell.states().values()) == {"done"}, "only the answers of finished comparisons are left"


def test_a_resume_finds_the_store_and_the_prompt_from_stdin(shell: Shell) -> None:
    process = subprocess.Popen(
        [*COMMAND, "compare", "-", *TWO, "--folder", str(work(shell)), "--store", "sqlite:other.db"],
        cwd=shell.folder, env=shell.env, text=True, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    shell.started.append(process)
    assert process.stdin is not None
    process.stdin.write("Say hello.")
    process.stdin.close()
    until(lambda: "slow 1" in requests(shell), "the slow one to be asked")
    kill(process)
    elsewhere = shell.run("compare", "--resume", "--store", "sqlite:runs.db")
    assert (elsewhere.returncode, "sqlite:other.db" in elsewhere.stderr) == (2, True)
    shell.open_gate()
    report = json.loads(shell.ok("compare", "--resume", "--json"))
    assert (report["prompt"], [row["status"] for row in report["rows"]]) == ("Say hello.", ["completed"] * 2)
    assert requests(shell).count("slow 0") == 1


def test_the_password_of_a_store_is_neither_stored_nor_printed(shell: Shell) -> None:
    url = "postgresql://user:hunter2@127.0.0.1:1/runs"
    process = shell.start("compare", "Say hello.", *TWO, "--store", url)
    line = line_with(process.stderr, "resume with")
    kill(process)
    assert line.endswith("holdfast compare --resume --store 'postgresql://user:***@127.0.0.1:1/runs'\n")
    stored = (shell.folder / ".holdfast" / "compare" / "last.arguments.json").read_text()
    assert ("hunter2" in stored, "user:***@" in stored) == (False, True)
    refused = shell.run("compare", "--resume")
    assert (refused.returncode, "name that store with --store" in refused.stderr) == (2, True)


def test_verbose_prints_every_step_and_so_does_the_resume(shell: Shell) -> None:
    command = ["compare", "Say hello.", *TWO, "--folder", str(work(shell)), "--verbose"]
    interrupt(shell, *command)
    shell.open_gate()
    done = shell.run("compare", "--resume")
    assert done.returncode == 0
    assert "holdfast: rivals:slow: step 2: read_file done\n" in done.stderr
    assert "holdfast: rivals:slow: step 3: model answered: slow says hello\n" in done.stderr


def test_a_proposal_touches_the_disk_when_it_is_applied(shell: Shell) -> None:
    shell.open_gate()
    folder = work(shell)
    shell.ok("compare", "Say hello.", *TWO, "--folder", str(folder))
    assert list(folder.iterdir()) == []
    assert shell.ok("compare", "--apply", "rivals:slow") == "hello.txt\n"
    assert (folder / "hello.txt").read_text() == "hello from slow\n"
    assert shell.json("compare", "--wins") == [
        {"model_id": "rivals:slow", "wins": 1, "comparisons": 1},
        {"model_id": "rivals:quick", "wins": 0, "comparisons": 1},
    ]
    wrong = shell.run("compare", "--apply", "unheard-of")
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "holdfast: no response of 'unheard-of': the models are rivals:quick, rivals:slow\n",
    )


def test_a_recipe_has_tasks_and_criteria(shell: Shell) -> None:
    shell.open_gate()
    folder = work(shell)
    (shell.folder / "recipe.md").write_text(RECIPE)
    reports = json.loads(shell.ok("compare", "--recipe", "recipe.md", "--folder", str(folder), "--json"))
    assert [report["prompt"] for report in reports] == ["Say hello.", "Say it again."]
    assert [[row["passed"] for row in report["rows"]] for report in reports] == [[True, False], [True, True]]
    assert [check["criterion"] for check in reports[0]["rows"][0]["checks"]] == [
        "hello.txt exists",
        "run grep -q hello hello.txt",
        "hello.txt contains 'quick'",
    ]
    assert list(folder.iterdir()) == []
    shell.ok("compare", "--apply", "rivals:quick", "--task", "greet")
    assert (folder / "hello.txt").exists()


def test_a_terminal_shows_a_panel_for_each_model(shell: Shell) -> None:
    terminal = shell.terminal("compare", "Say hello.", *TWO, "--folder", str(work(shell)))
    terminal.wait_for("step 2: asking the model")
    shell.open_gate()
    assert terminal.finish() == 0
    assert "─ rivals:quick ─" in terminal.text
    assert "─ rivals:slow ─" in terminal.text


def test_wrong_usage_is_told_in_a_line(shell: Shell) -> None:
    for arguments, message in [
        (["Say hello."], "no models: name them"),
        (["-m", "openai:gpt-5"], "the prompt is missing"),
        (["--resume"], "there is no comparison to resume: start one"),
        (["--recipe", "missing.md"], "missing.md: "),
        (["x", "--agent", "rivals:quick", "--name", "a/b"], "'a/b' is not a valid name"),
        (["--apply", "x"], "no comparison of this name has finished"),
        (["x", "-m", "unheard-of:nothing"], "unheard-of:nothing"),
    ]:
        done = shell.run("compare", *arguments)
        assert done.returncode in (1, 2)
        assert len(done.stderr.splitlines()) == 1
        assert message in done.stderr
    assert not list(shell.folder.glob(".holdfast/compare/*")), "a comparison that did not start has no files"
