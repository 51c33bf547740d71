"""Every Python block in the documentation runs in a process of its own, those of a page in one folder."""

import os
import re
from pathlib import Path

import pytest
from tests.fork_server import ForkServer

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: The first line of a block that cannot run by itself says so, and why.
NOT_RUN = re.compile(r"# not run: \S+")
#: The pause in which a reader can kill a program. `test_readme` kills it.
PAUSE = "time.sleep(2)"

#: The process of a block has imported these already. Many blocks need them.
LIBRARIES = ["holdfast", "pydantic_ai"]
PROGRAMS = ForkServer(LIBRARIES, os.environ, ["-W", "error"])


def _blocks(page: Path) -> list[str]:
    blocks = BLOCK.findall(page.read_text())
    return [block.replace(PAUSE, "time.sleep(0)") for block in blocks if not NOT_RUN.match(block)]


WITH_CODE = [page for page in PAGES if _blocks(page)]


def test_there_are_pages_with_code() -> None:
    assert ROOT / "README.md" in WITH_CODE
    assert ROOT / "docs" / "quickstart.md" in WITH_CODE


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    for number, block in enumerate(_blocks(page)):
        script = tmp_path / f"block_{number}.py"
        script.write_text(block)
        done = PROGRAMS.run([script.name], cwd=tmp_path, env=os.environ, stdin="", timeout=60)
        assert done.returncode == 0, f"{page.name}, block {number}:\n{block}\n{done.stdout}{done.stderr}"


def test_the_readme_shows_a_working_example_by_line_30() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    opening = lines.index("```python")
    assert lines.index("```", opening) <= 30
