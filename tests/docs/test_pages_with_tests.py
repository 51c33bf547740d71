"""A block of the documentation that is a test file passes under pytest, as a reader runs it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST_FILE = re.compile(r"^```python\n(# (test_\w+\.py)\n.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {
    (page.stem, name): text
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for text, name in TEST_FILE.findall(page.read_text())
}


def test_the_pages_about_tests_have_some() -> None:
    assert {page for page, _ in FILES} >= {"test-your-agent", "crash-test-your-agent"}


@pytest.mark.parametrize(("page", "name"), FILES)
def test_a_test_file_of_a_page_passes(page: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[page, name])
    options = ["-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, name]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
