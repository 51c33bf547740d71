"""Every example runs and prints the output in its source."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, App
from holdfast.core.message import Reply

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OUTPUT = re.compile(r"^# Output:\n((?:# .*\n)+)", re.MULTILINE)


def read_expected_output(example: Path) -> str | None:
    found = OUTPUT.search(example.read_text())
    return None if found is None else "".join(line[2:] + "\n" for line in found[1].splitlines())


WITH_OUTPUT = [example for example in EXAMPLES if read_expected_output(example) is not None]


def test_the_examples_are_there() -> None:
    names = {example.stem for example in EXAMPLES}
    assert {"kill_and_resume", "web_service", "fleet", "llm_escalator"} <= names
    assert len(WITH_OUTPUT) >= 3


@pytest.mark.parametrize("example", WITH_OUTPUT, ids=lambda example: str(example.stem))
def test_an_example_prints_its_output(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == read_expected_output(example), done.stderr


@contextmanager
def serve(folder: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """Run the web service as a process on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "examples.web_service:server", "--port", str(port)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HOLDFAST_STORE": "sqlite:runs.db"}
    process = subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if b"running on" in line:
                break
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.communicate()


def ask(url: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(url, data, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as exc:
        return exc.code, json.loads(exc.read())


def test_the_web_service_answers_and_resumes_after_a_kill(tmp_path: Path) -> None:
    with serve(tmp_path) as (url, process):
        assert ask(f"{url}/ask", {"id": "q1", "prompt": "hello"}) == (202, {"id": "q1"})
        assert ask(f"{url}/ask", {"id": "q1", "prompt": "hello"}) == (202, {"id": "q1"})
        assert ask(f"{url}/ask", {"id": "q1", "prompt": "other"})[0] == 409
        assert ask(f"{url}/runs/q1") == (200, {"output": "5 letters"})
        assert ask(f"{url}/runs/unknown")[0] == 404
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL

    async def submit_unfinished_run() -> None:
        async def never(messages: object, tools: object) -> Reply:
            raise AssertionError

        async with App(
            [Agent(name="counter", model=never)],
            f"sqlite:{tmp_path / 'runs.db'}",
            worker=False,
        ) as app:
            await app.submit("counter", "left behind", run_id="q2")

    asyncio.run(submit_unfinished_run())
    with serve(tmp_path) as (url, _):
        assert ask(f"{url}/runs/q2") == (200, {"output": "11 letters"})
        assert ask(f"{url}/runs/q1") == (200, {"output": "5 letters"})
