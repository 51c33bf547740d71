"""Every example runs and prints the output in its source."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OUTPUT = re.compile(r"^# Output:\n((?:# .*\n)+)", re.MULTILINE)


def read_expected_output(example: Path) -> str | None:
    found = OUTPUT.search(example.read_text())
    return None if found is None else "".join(line[2:] + "\n" for line in found[1].splitlines())


WITH_OUTPUT = [example for example in EXAMPLES if read_expected_output(example) is not None]


def test_the_examples_are_there() -> None:
    names = {example.stem for example in EXAMPLES}
    assert {"kill_and_resume", "web_service", "chat_service", "fleet", "llm_escalator"} <= names
    assert len(WITH_OUTPUT) >= 3


@pytest.mark.parametrize("example", WITH_OUTPUT, ids=lambda example: str(example.stem))
def test_an_example_prints_its_output(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == read_expected_output(example), done.stderr
