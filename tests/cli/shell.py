"""The real `holdfast` command in processes of its own, with pipes or under a pseudo-terminal."""

import asyncio
import errno
import fcntl
import importlib
import importlib.util
import json
import os
import pkgutil
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tests.fork_server import ForkServer

import holdfast
from holdfast.checkpoint.store import iter_runs
from holdfast.cli.opening import open_store

MODULES = Path(__file__).parent / "modules"
#: The folder of the holdfast that the tests themselves import, wherever that is installed.
SOURCE = Path(holdfast.__file__).parent.parent
#: As the installed script is started: without the working directory on the path.
COMMAND = [sys.executable, "-P", "-m", "holdfast"]

#: No test is about how fast things are; this only ends what would never end.
TIMEOUT = 60.0

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment(more: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "TMPDIR")}
    return {**kept, "PYTHONPATH": f"{MODULES}{os.pathsep}{SOURCE}", "PYTHONUNBUFFERED": "1", **more}


def _find_modules() -> list[str]:
    """The modules of every command, and those that the commands import late."""
    package = importlib.import_module("holdfast.cli")
    names = [module.name for module in pkgutil.walk_packages(package.__path__, "holdfast.cli.")]
    late = [name for name in ("typer._adapters", "typer.rich_utils") if importlib.util.find_spec(name)]
    return ["holdfast.stores.sqlite", *names, *late]


#: Runs the commands that a test only waits for. Those that it starts, and perhaps kills, have an interpreter each.
_COMMANDS = ForkServer(_find_modules(), environment({}))


class Shell:
    """A working directory with a store of its own, in which commands are run."""

    def __init__(self, folder: Path, store: str = "sqlite:runs.db") -> None:
        self.folder = folder
        self.env = environment({"HOLDFAST_STORE": store})
        self.started: list[subprocess.Popen[str]] = []

    def run(self, *args: str, stdin: str = "", **env: str) -> "subprocess.CompletedProcess[str]":
        """What the command gave, whatever its exit code."""
        both = {**self.env, **env}
        if any(name.startswith("PYTHON") for name in env):  # for the interpreter itself
            return subprocess.run(
                [*COMMAND, *args], cwd=self.folder, env=both, input=stdin, text=True,
                capture_output=True, timeout=TIMEOUT, check=False,
            )  # fmt: skip
        return _COMMANDS.run(["-m", "holdfast", *args], cwd=self.folder, env=both, stdin=stdin, timeout=TIMEOUT)

    def ok(self, *args: str, stdin: str = "") -> str:
        """The stdout of a command that has to succeed."""
        done = self.run(*args, stdin=stdin)
        assert done.returncode == 0, (args, done.stdout, done.stderr)
        return done.stdout

    def json(self, *args: str) -> Any:
        """What a command that has to succeed gives with `--json`."""
        return json.loads(self.ok(*args, "--json"))

    def states(self) -> dict[str, str]:
        """How each run stands, by its id. Not by a command: there are tests enough for `ls`."""

        async def look() -> dict[str, str]:
            async with open_store(f"sqlite:{self.folder / 'runs.db'}") as store:
                return {record.run_id: record.current_status async for record in iter_runs(store)}

        return asyncio.run(look())

    def wait_for_entry(self, run_id: str, text: str) -> None:
        """Return once the journal of the run has this in it: what a harmless tool does may be seen before that."""

        async def look() -> bool:
            async with open_store(f"sqlite:{self.folder / 'runs.db'}") as store:
                stored = await store.load(run_id)
                return any(text.encode() in entry.body for entry in stored.entries)

        until(lambda: asyncio.run(look()), f"{text} in the journal of {run_id}")

    def start(self, *args: str) -> "subprocess.Popen[str]":
        """Start a command, stdout and stderr in pipes. Ends with the test, whatever happens."""
        process = subprocess.Popen(
            [*COMMAND, *args], cwd=self.folder, env=self.env, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def terminal(self, *args: str) -> "Terminal":
        """A command under a pseudo-terminal."""
        terminal = Terminal([*COMMAND, *args], self.folder, {**self.env, "TERM": "xterm-256color"})
        self.started.append(terminal.process)
        return terminal

    def read_effects(self) -> list[str]:
        """What tools did, one line for each call."""
        path = self.folder / "effects"
        return path.read_text().splitlines() if path.exists() else []

    def wait_for_effect(self, effect: str) -> None:
        """Return once a tool has done this."""
        until(lambda: effect in self.read_effects(), f"{effect} in {self.read_effects()}")

    def open_gate(self) -> None:
        (self.folder / "open").touch()

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


def until(holds: Any, what: str) -> None:
    """Return once `holds()` does."""
    end = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def line_with(stream: IO[str] | None, text: str) -> str:
    """The next line of `stream` that has `text` in it."""
    assert stream is not None
    for line in stream:
        if text in line:
            return line
    raise AssertionError(f"the stream ended without {text!r}")


def kill(process: "subprocess.Popen[Any]") -> None:
    """SIGKILL, and see that it was that which ended it."""
    assert process.poll() is None, "it ended by itself"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


class Terminal:
    """A process whose stdin, stdout and stderr are one terminal, and what it has shown on it."""

    def __init__(self, command: list[str], folder: Path, env: dict[str, str]) -> None:
        self._screen, tty = pty.openpty()
        fcntl.ioctl(tty, termios.TIOCSWINSZ, b"\x32\x00\x8c\x00\x00\x00\x00\x00")  # 50 lines of 140

        def take_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process: subprocess.Popen[Any] = subprocess.Popen(
            command, cwd=folder, env=env, stdin=tty, stdout=tty, stderr=tty, start_new_session=True,
            preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(tty)
        self.raw = ""

    @property
    def text(self) -> str:
        """All that was shown, without colours and movements of the cursor."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str) -> None:
        """Return once `text` was shown."""
        for _ in self._chunks():
            if text in self.text:
                return
        raise AssertionError(f"{text!r} was never shown:\n{self.text}")

    def finish(self) -> int:
        """Take in all that is still shown; the exit code."""
        for _ in self._chunks():
            pass
        os.close(self._screen)
        return self.process.wait(TIMEOUT)

    def _chunks(self) -> Iterator[None]:
        end = time.monotonic() + TIMEOUT
        yield
        while time.monotonic() < end:
            ready, _, _ = select.select([self._screen], [], [], 0.1)
            if not ready:
                continue
            try:
                data = os.read(self._screen, 65536)
            except OSError as exc:
                if exc.errno == errno.EIO:  # the last one who had the terminal open is gone
                    return
                raise
            if not data:
                return
            self.raw += data.decode(errors="replace")
            yield
        raise AssertionError(f"it never ended:\n{self.text}")
