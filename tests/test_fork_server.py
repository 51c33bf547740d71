"""A program in a fork of the server is as one in an interpreter of its own."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fork_server import ForkServer

SERVER = ForkServer(["json"], os.environ)

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run this code as a file in the test's own folder."""

    def run(code: str, *arguments: str, stdin: str = "", timeout: float = 60) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "program.py").write_text(code)
        (tmp_path / "beside.py").write_text("NAME = __name__")
        env = {**os.environ, "WHO": "me"}
        return SERVER.run(["program.py", *arguments], cwd=tmp_path, env=env, stdin=stdin, timeout=timeout)

    return run


def test_it_has_its_own_arguments_environment_folder_and_streams(run: Run, tmp_path: Path) -> None:
    code = "import os, sys, beside; print(sys.argv, os.environ['WHO'], os.getcwd(), beside.NAME, __name__, input())"
    done = run(code + "; print('oh', file=sys.stderr)", "a", "b", stdin="line\n")
    assert done.stdout == f"['program.py', 'a', 'b'] me {tmp_path} beside __main__ line\n"
    assert (done.stderr, done.returncode) == ("oh\n", 0)


def test_its_exit_code_or_signal_is_seen(run: Run) -> None:
    assert run("raise SystemExit(3)").returncode == 3
    assert run("import os; os.kill(os.getpid(), 9)").returncode == -9
    failed = run("1 / 0")
    assert failed.returncode == 1
    assert "ZeroDivisionError" in failed.stderr


def test_programs_share_nothing(run: Run) -> None:
    assert run("import json; json.mark = 1").returncode == 0
    assert run("import json; print(hasattr(json, 'mark'))").stdout == "False\n"


def test_one_that_does_not_end_is_killed_and_the_next_one_runs(run: Run) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("import signal; signal.pause()", timeout=0.1)
    assert run("print('next')").stdout == "next\n"
