"""holdfast chat, on a terminal: live text, inline approvals, leaving and returning."""

import subprocess

from tests.cli.shell import COMMAND, Shell, Terminal, kill


def leave(terminal: Terminal) -> None:
    terminal.type("\x03")
    terminal.wait_for("return with: holdfast chat talker:agent")
    assert terminal.finish() == 0


def test_a_person_approves_inline_leaves_and_returns_to_the_same_place(shell: Shell) -> None:
    first = shell.terminal("chat", "talker:agent")
    first.wait_for("you: ")
    first.type("hello there\n")
    first.wait_for("talker: You said hello there")
    first.type("pay\n")
    first.wait_for("talker: One moment.")
    first.wait_for("approve pay?\n    amount = 900\n    to = bob\n  [y]es, [n]o, [e]dit: ")
    leave(first)
    assert shell.read_effects() == []

    second = shell.terminal("chat", "talker:agent")
    second.wait_for("you: hello there\ntalker: You said hello there")
    second.wait_for("[y]es, [n]o, [e]dit: ")
    second.type("e\n")
    second.wait_for("amount [900]: ")
    second.type("90\n")
    second.wait_for("to [bob]: ")
    second.type("\n")
    second.wait_for("talker: It says: paid 90 to bob")
    second.type("pay\n")
    second.wait_for("approve pay?\n    amount = 900\n    to = bob\n  [y]es, [n]o, [e]dit: ")
    second.type("n\n")
    second.wait_for("reason: ")
    second.type("enough\n")
    second.wait_for("talker: It says: enough")
    second.type("ask\n")
    second.wait_for("Which colour?\n  answer: ")
    second.type("red\n")
    second.wait_for("talker: It says: red")
    leave(second)
    assert shell.read_effects() == ["paid 90 to bob"]


def test_a_kill_in_the_middle_of_a_reply_loses_nothing(shell: Shell) -> None:
    first = shell.terminal("chat", "talker:agent", "--key", "k")
    first.wait_for("you: ")
    first.type("slow\n")
    first.wait_for("talker: You said slow")
    kill(first.process)
    shell.open_gate()
    second = shell.terminal("chat", "talker:agent", "--key", "k")
    second.wait_for("you: slow\n")
    second.wait_for("talker: You said slow at last")
    second.type("\x04")  # the end of the input leaves too
    assert second.finish() == 0
    [run] = shell.json("ls")["runs"]
    shown = shell.json("show", run["run_id"])
    assert [item["kind"] for item in shown["transcript"]].count("user") == 1


def test_lines_from_a_pipe_are_answered_in_order(shell: Shell) -> None:
    done = subprocess.run(
        [*COMMAND, "chat", "talker:agent"],
        cwd=shell.folder, env=shell.env, input="one\ntwo\n", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout == "you: talker: You said one \nyou: talker: You said two \nyou: "
