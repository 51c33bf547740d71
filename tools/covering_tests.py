"""A pytest plugin of `tools/mutants.py`: record which tests enter which functions, and run chosen tests first.

    COVERING_RECORD=FILE pytest -p tools.covering_tests ...    write the seconds and the functions of each test
    COVERING_TESTS=FILE pytest -p tools.covering_tests ...     run unknown tests, then those under "run", in its order

Only the process of pytest is observed. Functions that its child processes enter are not recorded.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType

import pytest

_entered: set[CodeType] = set()
_recorded: dict[str, tuple[float, list[str]]] = {}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "COVERING_TESTS" not in os.environ:
        return
    chosen = json.loads(Path(os.environ["COVERING_TESTS"]).read_text())
    order = {name: index for index, name in enumerate(chosen["run"])}
    skipped = set(chosen["known"]) - order.keys()
    items[:] = [item for item in items if item.nodeid not in skipped]
    items.sort(key=lambda item: order.get(item.nodeid, -1))
    for item in items:  # a mutant that makes a test hang is common
        item.add_marker(pytest.mark.timeout(20 + 10 * chosen["known"].get(item.nodeid, 4.0)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if "COVERING_RECORD" not in os.environ:
        return (yield)
    _entered.clear()
    threading.settrace(_enter)
    sys.settrace(_enter)
    began = time.monotonic()
    try:
        return (yield)
    finally:
        sys.settrace(None)
        threading.settrace(_ignore)
        _recorded[item.nodeid] = (time.monotonic() - began, sorted(_name_functions()))


def pytest_sessionfinish() -> None:
    if "COVERING_RECORD" in os.environ:
        Path(os.environ["COVERING_RECORD"]).write_text(json.dumps(_recorded))


def _enter(frame: FrameType, _event: str, _argument: object) -> None:
    _entered.add(frame.f_code)


def _ignore(_frame: FrameType, _event: str, _argument: object) -> None:
    """Trace nothing."""


def _name_functions() -> set[str]:
    """Return the functions of the package that were entered, each as the name of its file and its qualified name.

    Without the folder: what is remembered is valid after a move.
    """
    names = set()
    for code in _entered.copy():
        if "/src/holdfast/" in code.co_filename:
            names.add(f"{code.co_filename.rpartition('/')[2]}::{code.co_qualname}")
    return names
