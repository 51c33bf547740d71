"""Shells in which commands are run."""

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
