"""Runs the suite in a process of its own, within a time, and removes what the check has created."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import IO, Literal

import msgspec

from holdfast.clock import SYSTEM_CLOCK
from holdfast.testing.store_check.scratch_stores import Scratch
from holdfast.testing.store_check.server_features import ServerFeature, find_features
from holdfast.testing.store_check.suite_reporter import (
    PIPE_VARIABLE,
    CaseEnded,
    CaseStarted,
    SuiteCollected,
    SuiteEvent,
)

#: Plugins of the user's other tests are not loaded.
_PYTEST = (
    *("-m", "pytest", "-q", "-p", "pytest_asyncio.plugin", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"),
    *("-p", "holdfast.testing.store_check.suite_reporter", "--pyargs", "holdfast.testing.store_check.checked_store"),
)
_MAX_LOG_BYTES = 2_000


class SuiteOutcome(msgspec.Struct, kw_only=True):
    """How the tests ended."""

    collected: int = 0
    passed: int = 0
    #: By test.
    failures: dict[str, str] = {}
    seconds: float = 0
    #: Why pytest ran no test.
    problem: str = ""

    @property
    def not_run(self) -> int:
        return self.collected - self.passed - len(self.failures)


class StoreCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    #: Where the tests ran, without secrets.
    place: str
    features: list[ServerFeature]
    #: `lacking`: a required feature is missing, and no test was run.
    verdict: Literal["passed", "failed", "lacking"]
    suite: SuiteOutcome


def check_store(
    scratch: Scratch, *, only: str, timeout: timedelta, report: Callable[[SuiteOutcome], None]
) -> StoreCheck:
    """Try out the database, run the suite in the place of the check, and remove that place.

    Args:
        only: run the tests whose names match this expression of `pytest -k`.
        timeout: after this time the tests in progress are killed.
        report: called after each test.

    Raises:
        StoreError: the database cannot be reached, or the place could not be removed.
    """
    with _stop_on_sigterm():
        try:
            features = asyncio.run(find_features(scratch))
            lacking = any(feature.is_fatal for feature in features)
            suite = SuiteOutcome() if lacking else _SuiteProcess(scratch, only, timeout).run(report)
        finally:
            with _ignore_signals():
                scratch.remove()
    failed = bool(suite.failures or suite.not_run or suite.problem)
    verdict: Literal["passed", "failed", "lacking"] = "lacking" if lacking else "failed" if failed else "passed"
    return StoreCheck(place=scratch.describe(), features=features, verdict=verdict, suite=suite)


class _SuiteProcess:
    """The process of pytest, with all processes that its tests start."""

    def __init__(self, scratch: Scratch, only: str, timeout: timedelta) -> None:
        self._scratch, self._only, self._timeout = scratch, only, timeout
        self._began = SYSTEM_CLOCK.monotonic()

    def run(self, report: Callable[[SuiteOutcome], None]) -> SuiteOutcome:
        outcome, current = SuiteOutcome(), ""
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
            with self._start(folder, log) as (process, pipe):
                for event in self._read_events(pipe):
                    _count(outcome, event)
                    current = event.test if isinstance(event, CaseStarted) else ""
                    report(outcome)
                if SYSTEM_CLOCK.monotonic() < self._deadline:
                    process.wait()
            if not outcome.collected:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _MAX_LOG_BYTES))
                outcome.problem = f"pytest ran no test: {log.read().decode(errors='replace').strip()}"
        if current:
            seconds = self._timeout.total_seconds()
            outcome.failures[current] = f"it had not ended when the time of {seconds:g} s was over"
        outcome.seconds = SYSTEM_CLOCK.monotonic() - self._began
        return outcome

    @property
    def _deadline(self) -> float:
        return self._began + self._timeout.total_seconds()

    @contextlib.contextmanager
    def _start(self, folder: str, log: IO[bytes]) -> "Iterator[tuple[subprocess.Popen[bytes], int]]":
        """Start pytest in a session of its own. At the end all processes of the session are killed."""
        reading, writing = os.pipe()
        environment = os.environ | self._scratch.make_environment() | {PIPE_VARIABLE: str(writing)}
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
        process = subprocess.Popen(
            [sys.executable, *_PYTEST, "--rootdir", folder, *(("-k", self._only) if self._only else ())],
            cwd=folder,
            env=environment,
            pass_fds=[writing],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            os.close(writing)
            yield process, reading
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(reading)

    def _read_events(self, pipe: int) -> Iterator[SuiteEvent]:
        """Yield the events until the pipe is closed, or the time is over."""
        decoder: msgspec.json.Decoder[SuiteEvent] = msgspec.json.Decoder(SuiteEvent)
        rest = b""
        while (left := self._deadline - SYSTEM_CLOCK.monotonic()) > 0:
            ready, _, _ = select.select([pipe], [], [], left)
            received = os.read(pipe, 65_536) if ready else b""
            if not received:
                return
            *lines, rest = (rest + received).split(b"\n")
            yield from map(decoder.decode, lines)


def _count(outcome: SuiteOutcome, event: SuiteEvent) -> None:
    match event:
        case SuiteCollected(count=count):
            outcome.collected = count
        case CaseEnded(test=test, error=error) if error:
            outcome.failures[test] = error
        case CaseEnded():
            outcome.passed += 1


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextlib.contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Make SIGTERM an exit that removes what the check has created, as Ctrl-C is."""
    before = signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _ignore_signals() -> Iterator[None]:
    """Let a second Ctrl-C not interrupt the removal, which takes a bounded time."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
