"""The fixture as a user has it: in a test file of another project."""

import subprocess
import sys
from pathlib import Path

CONFTEST = 'pytest_plugins = ["holdfast.testing.pytest_plugin"]\n'

TESTS = """
import threading

import pytest
from holdfast import Agent, Reply, ToolCall, tool
from holdfast.core.errors import DefinitionError

if {threads}:
    threading.Thread(target=threading.Event().wait, name="mine", daemon=True).start()

@tool(on_error="raise")
def greet(name: str) -> str:
    # A forked child would not have the thread.
    assert ("mine" in [thread.name for thread in threading.enumerate()]) == {threads}
    return f"hello {{name}}"

async def model(messages, tools):
    if len(messages) == 1:
        return Reply(tool_calls=[ToolCall(id="call", name="greet", arguments={{"name": "you"}})])
    return Reply(text=messages[-1].content)

greeter = Agent(name="greeter", model=model, tools=[greet])

def build_two():
    return [greeter, Agent(name="other", model=model)]

def test_it_survives(crash_everywhere):
    report = crash_everywhere(greeter, "hi", sample={sample})
    assert len(report.points) >= 10

def test_a_function_that_builds_it(crash_everywhere):
    report = crash_everywhere(build_two, "hi", sample=1)
    assert len(report.trials) == 1

def test_it_fails(crash_everywhere, tmp_path):
    local = Agent(name="local", model=model)
    with pytest.raises(DefinitionError):
        crash_everywhere(local, "hi")
"""


def _pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    program = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-s",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        str(folder),
    ]
    return subprocess.run(program, cwd=folder, capture_output=True, text=True, check=False)


def test_the_fixture_finds_agents_in_the_test_file_itself(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_greeter.py").write_text(TESTS.format(threads=False, sample=None))
    done = _pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_agent_whose_import_starts_threads_gets_a_new_interpreter_for_each_attempt(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_greeter.py").write_text(TESTS.format(threads=True, sample=3))
    done = _pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
