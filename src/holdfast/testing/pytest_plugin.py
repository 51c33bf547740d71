"""A pytest fixture for crash tests: put `pytest_plugins = ["holdfast.testing.pytest_plugin"]` into your conftest.py."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.crash import CrashReport
from holdfast.testing.crash import crash_everywhere as crash


@pytest.fixture
def crash_everywhere(tmp_path: Path) -> Callable[..., CrashReport]:
    """Return `holdfast.testing.crash_everywhere` with its logs under `tmp_path`."""
    numbers = itertools.count(1)

    def run_crash_test(agent: Any, prompt: str, **options: Any) -> CrashReport:
        folder = tmp_path / f"crashes-{next(numbers)}"
        folder.mkdir()
        report = crash(agent, prompt, **{"folder": folder, **options})
        print(report)
        return report

    return run_crash_test
