"""The web service as a process of its own: it accepts questions at once, and its restarts lose and repeat nothing."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT = 60


class Server:
    """A uvicorn process on loopback."""

    def __init__(self, folder: Path, module: str, port: int = 0) -> None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", f"{module}:server", "--port", str(self.port)]
        env = {**os.environ, "HOLDFAST_STORE": "sqlite:runs.db"}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [*command, "--timeout-graceful-shutdown", "1"], cwd=folder, env=env, stderr=subprocess.PIPE, text=True
        )

    def wait_for_log(self, text: str) -> None:
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if text in line:
                return
        raise AssertionError(f"{text!r} is not in the log:\n{''.join(lines)}")

    def request(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """Return the status and the content of the response. GET, or POST with a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                content = answer.read()
                return answer.status, json.loads(content) if content else None
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, exc.read().decode()


@contextmanager
def serve(folder: Path, module: str = "examples.web_service", port: int = 0) -> Iterator[Server]:
    server = Server(folder, module, port)
    try:
        server.wait_for_log("running on")
        yield server
    finally:
        server.process.kill()
        server.process.communicate()


def read_ledger(folder: Path) -> list[str]:
    return (folder / "ledger").read_text().splitlines()


def wait_for_line(folder: Path, line: str) -> None:
    """Wait until the service has written this line."""
    while not (folder / "ledger").exists() or line not in read_ledger(folder):
        time.sleep(0.01)


def test_a_question_is_answered_and_its_answer_stays_over_a_kill(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        assert server.request("/ask", {"id": "q1", "prompt": "hello"}) == (202, {"id": "q1"})
        assert server.request("/runs/q1") == (200, {"output": "5 letters"})
        assert server.request("/ask", {"id": "q1", "prompt": "hello"}) == (202, {"id": "q1"})
        assert server.request("/ask", {"id": "q1", "prompt": "other"})[0] == 409
        assert server.request("/runs/unknown")[0] == 404
        server.process.kill()
        assert server.process.wait(TIMEOUT) == -signal.SIGKILL
    with serve(tmp_path) as server:
        assert server.request("/runs/q1") == (200, {"output": "5 letters"})


def test_a_question_is_accepted_before_it_is_answered(tmp_path: Path) -> None:
    module = "tests.examples.gated_service"
    with serve(tmp_path, module) as server:
        assert server.request("/ask", {"id": "q1", "prompt": "hello"}) == (202, {"id": "q1"})
        status, content = server.request("/runs/q1?wait=0.01")
        assert (status, content["status"]) in [(202, "queued"), (202, "running")]
        server.process.kill()
        server.process.wait(TIMEOUT)
    (tmp_path / "gate").touch()
    with serve(tmp_path, module) as server:  # the App is a worker: it resumes the run by itself
        assert server.request("/runs/q1") == (200, {"output": "open"})


def test_a_request_that_a_shutdown_cuts_off_is_retried_and_gets_the_same_run(tmp_path: Path) -> None:
    module, trip = "tests.examples.booking_service", {"id": "t1", "prompt": "three nights"}
    with ThreadPoolExecutor() as threads:
        with serve(tmp_path, module) as server:
            cut_off = threads.submit(server.request, "/trips", trip)
            wait_for_line(tmp_path, "book 1")
            server.process.send_signal(signal.SIGTERM)
            server.wait_for_log("Cancel 1 running task(s), timeout graceful shutdown exceeded")
            (tmp_path / "gate").touch()  # now the second booking ends, in a run that has lost its caller
            server.process.wait(TIMEOUT)
            assert cut_off.exception() is not None or cut_off.result()[0] == 500
        assert read_ledger(tmp_path) == ["ask 0", "book 0", "ask 1", "book 1"]
        with serve(tmp_path, module) as server:
            assert server.request("/trips", trip) == (200, {"output": "3 nights are booked"})
            assert server.request("/trips", trip) == (200, {"output": "3 nights are booked"})
    assert read_ledger(tmp_path) == ["ask 0", "book 0", "ask 1", "book 1", "ask 2", "book 2", "ask 3"]
