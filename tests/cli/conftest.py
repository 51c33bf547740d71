"""Shells in which commands are run."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell whose HOLDFAST_STORE is a new SQLite file."""
    shell = Shell(tmp_path)
    yield shell
    shell.end()


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Undo what a command that runs in the process of the tests does to the loggers, which later tests read."""
    logger, lifecycle = logging.getLogger("holdfast"), logging.getLogger("holdfast.lifecycle")
    before = (logger.propagate, list(logger.handlers), lifecycle.level)
    yield
    logger.propagate, logger.handlers[:], level = before
    lifecycle.setLevel(level)
