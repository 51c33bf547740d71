"""Python programs in processes of their own, without the time that Python takes to import what they need.

A server process imports modules once. Each program runs in a fork of it, as the main module, with arguments,
environment, working directory, standard streams and exit code of its own. A program that a test kills, or connects to
a terminal, is started in a new interpreter instead.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: The size of a request, in bytes. It is one message.
_MAX_REQUEST = 150_000
#: The size of the text on standard input: what a pipe holds while nothing reads it.
_MAX_INPUT = 60_000


class ForkServer:
    """The server, as the tests see it. It starts with the first program and ends with this process."""

    def __init__(self, preload: Sequence[str], env: Mapping[str, str], options: Sequence[str] = ()) -> None:
        """Choose the modules, and the environment and the options of the interpreter that imports them."""
        self._preload, self._env, self._options = preload, env, options
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()

    def run(
        self, program: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str, timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program to its end: `-m MODULE ARGUMENTS` or `FILE ARGUMENTS`, as after `python`.

        Raises:
            subprocess.TimeoutExpired: the program has not ended in this many seconds. It was killed.
        """
        request = json.dumps({"program": list(program), "cwd": str(cwd), "env": dict(env)}).encode()
        assert len(request) <= _MAX_REQUEST
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            given = _fill_pipe(stdin)
            with self._lock:  # one program after another
                server = self._connection = self._connection or self._start()
                socket.send_fds(server, [request], [given, output.fileno(), errors.fileno()])
                os.close(given)
                code = _wait_for_exit(server, program, timeout)
            texts = [_read(stream) for stream in (output, errors)]
        return subprocess.CompletedProcess(list(program), code, *texts)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", *self._options, __file__, str(theirs.fileno()), *self._preload]
            process = subprocess.Popen(
                command,
                env=self._env,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

        @atexit.register
        def stop() -> None:
            ours.close()
            process.wait()

        return ours


def _fill_pipe(text: str) -> int:
    """Return the reading end of a pipe that holds the text and whose writing end is closed."""
    content = text.encode()
    assert len(content) <= _MAX_INPUT
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    return reading


def _wait_for_exit(server: socket.socket, program: Sequence[str], timeout: float) -> int:
    pid = int(server.recv(_MAX_REQUEST))
    server.settimeout(timeout)
    try:
        return int(server.recv(_MAX_REQUEST))
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        server.settimeout(None)
        server.recv(_MAX_REQUEST)
        raise subprocess.TimeoutExpired(list(program), timeout) from None
    finally:
        server.settimeout(None)


def _read(stream: Any) -> str:
    stream.seek(0)
    text: str = stream.read().decode()
    return text


# -- in the server ----------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket) -> None:
    """Fork for each request. Return in the server when its caller has gone, and in each child when it is set up."""
    while True:
        request, streams, _, _ = socket.recv_fds(connection, _MAX_REQUEST, 3)
        if not request:
            os._exit(0)
        child = os.fork()
        if child == 0:
            connection.close()
            _become(streams, **json.loads(request))
            return
        for stream in streams:
            os.close(stream)
        connection.send(b"%d" % child)
        connection.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _become(streams: Sequence[int], program: list[str], cwd: str, env: dict[str, str]) -> None:
    """Make this process what a new interpreter would be."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = program


def main() -> None:
    for module in sys.argv[2:]:
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork is safe only without threads"
    gc.collect()
    gc.freeze()  # a collection in a child would copy each page that has an object
    _serve(socket.socket(fileno=int(sys.argv[1])))
    if sys.argv[0] == "-m":
        module = sys.argv.pop(1)
        sys.argv[0] = module
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
