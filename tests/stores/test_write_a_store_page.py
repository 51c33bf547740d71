"""The page on writing a store shows a store that passes, and a suite that a reader can run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-store.md"

#: Of each part some tests: all of them run in test_contract.py.
SOME = "created or superseded or reopening or recycled or damaged or killed_processs"


def test_the_example_passes_the_suite(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "test_my_store.py").write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", "-k", SOME]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "test_my_store.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 10
