"""`make chaos` prints a line for each oracle: what a long test has done, and whether its checks held."""

import os
from typing import Any

import pytest


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not os.environ.get("HOLDFAST_CHAOS"):
        return
    terminalreporter.section("oracles")
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if isinstance(report, pytest.TestReport):
                for name, line in report.user_properties:
                    if name == "oracle":
                        test = report.nodeid.rpartition("::")[2]
                        terminalreporter.write_line(f"{'ok' if report.passed else 'FAILED':<7} {test}: {line}")
