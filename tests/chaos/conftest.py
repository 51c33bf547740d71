"""`make chaos` prints a line for each oracle: what a long test has done, and whether its checks held."""

import os
from typing import Any

import pytest

#: These kill and stop at random moments. Without `make chaos` the simulator does, in virtual time: see docs/chaos.md.
_RANDOM = ["conversations", "fleet", "limits", "mail", "signals", "workflows"]
collect_ignore = [] if os.environ.get("HOLDFAST_CHAOS") else [f"test_{name}.py" for name in _RANDOM]


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
