"""Each test of the published suite fails for a store with a planted bug."""

import fcntl
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.stores.broken.suites import RED, without_case

from holdfast.testing.store_suite import DurableRunStoreSuite, RunStoreSuite

SUITES = Path(__file__).parent / "broken" / "suites.py"

Outcomes = dict[tuple[str, str], set[str]]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Outcomes:
    """The outcomes of the tests that have to fail, by store and test: `passed`, `failure` or `error`."""
    folder = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        folder = folder.parent  # of all workers of this test session: the first one runs the tests for all
    report = folder / "red.xml"
    with (folder / "red.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not report.exists():
            _run_red_tests(report)
    found: Outcomes = defaultdict(set)
    for case in ElementTree.parse(report).iter("testcase"):
        store = case.attrib["classname"].rpartition(".Test")[2]
        outcome = {child.tag for child in case} & {"failure", "error"} or {"passed"}
        for test in {case.attrib["name"], without_case(case.attrib["name"])}:
            found[store, test] |= outcome
    return found


def _run_red_tests(report: Path) -> None:
    tests = [f"{SUITES}::Test{store}::{test}" for store, red in RED.items() for test in red]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
        *tests,
    ]
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_TEST_THOROUGH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr


@pytest.mark.parametrize("store", RED)
def test_the_suite_goes_red_for_a_store_that(store: str, outcomes: Outcomes) -> None:
    assert {test for test in RED[store] if "failure" not in outcomes[store, test]} == set()


def test_every_test_of_the_suite_goes_red_for_some_store() -> None:
    tests = {name for suite in (RunStoreSuite, DurableRunStoreSuite) for name in dir(suite) if name.startswith("test_")}
    assert {without_case(test) for red in RED.values() for test in red} == tests
