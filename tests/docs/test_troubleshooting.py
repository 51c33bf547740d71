"""The troubleshooting page has the reasons, words and errors of the code."""

import re
from pathlib import Path

from holdfast import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
SOURCE = {path: path.read_text() for path in (ROOT / "src" / "holdfast").rglob("*.py")}


def _section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def _first_column(section: str) -> list[str]:
    cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    return [word for cell in cells for word in re.findall(r"`([^`]+)`", cell)]


def test_every_reason_to_park_a_run_is_explained() -> None:
    code = "\n".join(SOURCE.values())
    # A reason that ends with a name in braces is explained for each name.
    parked = {*re.findall(r'RunParked(?:\.__init__)?\(\s*(?:self,\s*)?f?"([a-z ]+)', code)}
    parked |= {*re.findall(r'f"(poison|damaged): ', code)}
    explained = _first_column(_section("A run is parked"))
    assert {reason for reason in parked if not any(row.startswith(reason) for row in explained)} == set()
    assert [row for row in explained if not any(row.startswith(reason) for reason in parked)] == []


def test_the_words_for_waits_are_those_of_the_listing() -> None:
    words = _first_column(_section("A run waits"))
    package = ROOT / "src" / "holdfast"
    describe = SOURCE[package / "runtime" / "reading" / "run_summary.py"]
    describe += SOURCE[package / "batteries" / "budget" / "budget.py"]  # its waits carry their own words
    assert len(words) >= 7
    for shown in words:
        beginning = re.split(r" (?:\.\.\.|NAME|ERROR)", shown)[0].removeprefix("waits for ")
        assert beginning in describe, shown


def test_every_error_of_the_store_exists() -> None:
    named = [name for name in _first_column(_section("The store")) if re.fullmatch(r"[A-Z]\w+", name)]
    assert len(named) >= 5
    assert set(named) <= set(errors.__all__)
