"""The caps on the size of the code base."""

import re
from pathlib import Path

import pytest
from tools import house

#: A simulator replaces time, threads and randomness. Patterns of their use, and the modules that may match.
HOMES = {
    r"^\s*(import|from) time\b|datetime\.(now|utcnow)\(": {"clock.py", "concurrency.py"},
    r"^\s*(import|from) threading\b|ThreadPoolExecutor": {"concurrency.py"},
    r"^\s*(import|from) (random|secrets)\b|os\.urandom|\buuid\.uuid[1-7]\b|from uuid import .*uuid[1-7]\b": {"ids.py"},
}
#: They kill real processes and measure real time.
REAL_PROCESSES = ("testing/", "cli/demo/")


def _module(tmp_path: Path, path: str, text: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_figure_above_its_cap_fails_with_a_sentence_that_names_the_places() -> None:
    lines, broken = house.compare({"lambdas": house.Figure(3, "a.py, b.py")}, {"lambdas": 2})
    assert lines == ["      3  of      2  lambdas"]
    assert broken == ["lambdas: 3, and at most 2 are allowed: a.py, b.py"]


def test_a_figure_below_its_cap_passes_and_asks_for_a_lower_cap() -> None:
    lines, broken = house.compare({"lambdas": house.Figure(1)}, {"lambdas": 2})
    assert lines == ["      1  of      2  lambdas  lower the cap"]
    assert broken == []


def test_modules_may_share_a_name_only_in_sibling_packages(tmp_path: Path) -> None:
    for path in (
        "stores/sqlite/writer.py",
        "stores/postgres/writer.py",
        "core/calls.py",
        "cli/calls.py",
        "cli/errors.py",
    ):
        _module(tmp_path, path, '"""A module."""\n')
    _module(tmp_path, "web/errors.py", '"""Errors."""\n')
    shared = house.find_shared_names(house.read_modules(tmp_path))
    assert shared == ["cli/calls.py", "core/calls.py"]


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    _module(tmp_path, "short.py", "def f() -> None: ...\n")
    _module(tmp_path, "long.py", "\n" * (house.FILE_LINES + 1))
    _, broken = house.check_sizes(house.read_modules(tmp_path))
    assert broken == ["long.py has 421 lines, and at most 420 are allowed"]


def test_an_identifier_that_was_given_up_is_refused_in_code_docs_and_tests(tmp_path: Path) -> None:
    for path in ("src/a.py", "docs/a.md", "tests/test_a.py", "bench/.environments/peer/a.py"):
        _module(tmp_path, path, "\nOldName here, not OldNames\n")
    found = house.find_old_identifiers(tmp_path, ["OldName"])
    assert found == [
        "docs/a.md:2: the identifier OldName was given up",
        "src/a.py:2: the identifier OldName was given up",
        "tests/test_a.py:2: the identifier OldName was given up",
    ]


@pytest.mark.parametrize("pattern", HOMES)
def test_time_threads_and_randomness_have_one_home(pattern: str) -> None:
    package = house.ROOT / "src" / "holdfast"
    users = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert {path for path in users if not path.startswith(REAL_PROCESSES)} == HOMES[pattern]
