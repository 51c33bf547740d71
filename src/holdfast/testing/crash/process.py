"""The tester's side of a nursery."""

import os
import subprocess
import sys

import msgspec

from holdfast.testing.crash.life import Ended, Life, Subject
from holdfast.testing.crash.report import CrashTestFailed


class Nursery:
    """A process that lives one life of the subject after another, each in a child of its own."""

    def __init__(self, subject: Subject) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.testing.crash.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._say(subject)

    def live(self, life: Life) -> int:
        """Returns when that life is over: its exit code, or below zero the signal that ended it."""
        self._say(life)
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise CrashTestFailed(f"the process that starts the trials ended with {self._process.wait()}")
        return msgspec.json.decode(answer, type=Ended).code

    def _say(self, what: Subject | Life) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(what) + b"\n")
        self._process.stdin.flush()

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
