"""The same commands on a store of a fleet."""

import json
import signal
import socket
from pathlib import Path

from tests.cli.shell import Shell, kill, line_with
from tests.postgres_pool import open_empty_postgres


def test_a_run_is_killed_found_and_resumed_on_postgresql(tmp_path: Path) -> None:
    with open_empty_postgres() as url:
        shell = Shell(tmp_path, store=url)
        try:
            process = shell.start("run", "sample:agent", "send gate", "--run-id", "r1")
            shell.wait_for_effect("gate c2-1")
            kill(process)
            assert [run["status"] for run in shell.json("ls")["runs"]] == ["interrupted"]
            found = {finding["check"]: finding for finding in shell.json("doctor", "sample:app")}
            assert found["schema"]["detail"].endswith("the newest")
            assert found["workers"]["detail"] == "0 alive with 0 runs, 1 dead with 1 runs"
            shell.open_gate()
            assert shell.ok("recover", "sample:app", "-q") == "recovered 1 run: 1 completed\n"
            assert shell.read_effects().count("send c1-1") == 1
            shell.ok("submit", "sampler", "note", "--run-id", "r2")
            shell.ok("recover", "sample:app", "-q")
            last = shell.ok("tail", "r2", "--json").splitlines()[-1]
            assert json.loads(last)["status"] == "done"
        finally:
            shell.end()


def test_a_server_that_is_not_there_is_reported_and_no_password_is_shown(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and no server listens
        shell = Shell(tmp_path, store=f"postgresql://me:s%23cret@127.0.0.1:{taken.getsockname()[1]}/nowhere")
        try:
            process = shell.start("ls")
            _, said = process.communicate()
            assert process.returncode == 1
            assert "cannot be reached: check its address" in said
            assert "cret" not in said
            assert "Traceback" not in said
        finally:
            shell.end()


def test_a_server_that_does_not_answer_is_waited_for_and_no_password_is_shown(tmp_path: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        shell = Shell(tmp_path, store=f"postgresql://me:secret@127.0.0.1:{silent.getsockname()[1]}/nowhere")
        try:
            process = shell.start("run", "sample:agent", "note", "--run-id", "r1")
            message = line_with(process.stderr, "waiting for the store to answer")
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate()
            assert process.returncode in (1, 130)
            assert "secret" not in message + rest
            assert "Traceback" not in rest
        finally:
            shell.end()
