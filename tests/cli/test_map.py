"""holdfast map and holdfast results."""

import csv
import io
import json
import signal

from tests.cli.shell import Shell, kill, line_with


def write_prompts(shell: Shell, *prompts: str) -> None:
    text = "".join(f"{number},{prompt}\n" for number, prompt in enumerate(prompts))
    (shell.folder / "prompts.csv").write_text(f"number,prompt\n{text}")


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


MAP = ("map", "sample:agent", "prompts.csv", "--out", "out.csv")


def test_the_results_of_all_prompts_are_in_the_file(shell: Shell) -> None:
    write_prompts(shell, "note", "send", "note")
    done = shell.run(*MAP, "--id", "b1")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].startswith("3 of 3: 3 done, 0 failed, 0 waiting")
    rows = read_csv((shell.folder / "out.csv").read_text())
    assert [(row["number"], row["status"], row["output"]) for row in rows] == [
        ("0", "done", "done: note"),
        ("1", "done", "done: send"),
        ("2", "done", "done: note"),
    ]
    shown = read_csv(shell.ok("results", "--label", "batch=b1"))
    assert sorted(row["output"] for row in shown) == ["done: note", "done: note", "done: send"]
    assert {row["run_id"] for row in shown} == {row["run_id"] for row in rows}
    assert read_csv(shell.ok("results", "--label", "batch=b1", "--csv")) == shown
    listed = json.loads(shell.ok("results", "--label", "batch=b1", "--json"))
    assert [row | {"cost_usd": str(row["cost_usd"])} for row in listed] == shown
    refused = shell.run("results", "--csv", "--json")
    assert (refused.returncode, "not both" in refused.stderr) == (2, True)


def test_ctrl_c_stops_and_the_same_command_continues(shell: Shell) -> None:
    write_prompts(shell, "send", "send gate send")
    stopped = shell.start(*MAP, "--concurrency", "1")  # the second run begins when the first one is counted
    shell.wait_for_effect("gate c2-1")
    stopped.send_signal(signal.SIGINT)
    line_with(stopped.stderr, "stopping after the current step")
    shell.open_gate()
    line_with(stopped.stderr, "1 of 2: 1 done, 0 failed, 0 waiting")
    line_with(stopped.stderr, "interrupted; start again to continue")
    assert stopped.wait() == 130
    check_continued(shell, "done: send gate send")


def test_a_kill_and_the_same_command_continues(shell: Shell) -> None:
    write_prompts(shell, "send", "send gate")
    killed = shell.start(*MAP, "--concurrency", "1")
    shell.wait_for_effect("gate c2-1")
    kill(killed)
    shell.open_gate()
    check_continued(shell, "done: send gate")


def check_continued(shell: Shell, last: str) -> None:
    assert shell.ok(*MAP) == ""
    rows = read_csv((shell.folder / "out.csv").read_text())
    assert [row["output"] for row in rows] == ["done: send", last]
    assert shell.read_effects().count("send c1-1") == 2  # one for each prompt


def test_a_file_without_prompts_is_refused(shell: Shell) -> None:
    (shell.folder / "prompts.csv").write_text("question\nwhy\n")
    done = shell.run(*MAP)
    assert (done.returncode, done.stderr) == (2, "holdfast: prompts.csv has no column prompt: it has question\n")


def test_no_cell_is_a_formula_of_a_spreadsheet(shell: Shell) -> None:
    formulas = ["=1+1", "+SUM(A1)", "-2+3", "@SUM(A1)", "\tx", "\rx"]
    numbers = ["-5", "+1.5", "-.5e3", "7"]
    with (shell.folder / "prompts.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["=name", "prompt"])
        writer.writerows([cell, "note"] for cell in [*formulas, *numbers])
        writer.writerow(["last", "=note"])
    shell.ok(*MAP, "--id", "b1")
    with (shell.folder / "out.csv").open(newline="") as written:
        rows = list(csv.DictReader(written))
    assert [row["'=name"] for row in rows] == [*(f"'{cell}" for cell in formulas), *numbers, "last"]
    shown = read_csv(shell.ok("results", "--label", "batch=b1"))
    assert [row["prompt"] for row in shown if row["prompt"] != "note"] == ["'=note"]
    listed = json.loads(shell.ok("results", "--label", "batch=b1", "--json"))
    assert [row["prompt"] for row in listed if row["prompt"] != "note"] == ["=note"]
