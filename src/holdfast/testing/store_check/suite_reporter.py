"""A pytest plugin that reports each test to the process that started pytest, as lines of JSON in a pipe."""

import os

import msgspec
import pytest

#: The number of the file descriptor.
PIPE_VARIABLE = "HOLDFAST_CHECK_PIPE"
_MAX_ERROR = 1_000


class SuiteCollected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How many tests will run."""

    count: int


class CaseStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A test begins."""

    test: str


class CaseEnded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A test has ended."""

    test: str
    #: Why it failed; empty if it passed.
    error: str = ""


SuiteEvent = SuiteCollected | CaseStarted | CaseEnded

_errors: list[str] = []


def _send(event: SuiteEvent) -> None:
    # Unbuffered. If the reader is gone this raises, which ends pytest.
    os.write(int(os.environ[PIPE_VARIABLE]), msgspec.json.encode(event) + b"\n")


def pytest_collection_finish(session: pytest.Session) -> None:
    _send(SuiteCollected(count=len(session.items)))


def pytest_runtest_logstart(nodeid: str) -> None:
    _errors.clear()
    _send(CaseStarted(test=_name(nodeid)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = str(crash.message if crash is not None else report.longrepr)
        _errors.append(" ".join(message.split())[:_MAX_ERROR] or "failed")


def pytest_runtest_logfinish(nodeid: str) -> None:
    _send(CaseEnded(test=_name(nodeid), error="; ".join(_errors)[:_MAX_ERROR]))


def _name(nodeid: str) -> str:
    return nodeid.rpartition("::")[2]
