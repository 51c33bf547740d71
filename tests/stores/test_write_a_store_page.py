"""The page on writing a store has a test module that a reader can run as it is, beside the example store."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
[TESTS] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "write-a-store.md").read_text(), re.DOTALL)
STORE = (ROOT / "examples" / "snapshot_store.py").read_text()

#: A few tests of each part. test_snapshot_store.py runs the whole suite.
SOME = "created or superseded or reopening or recycled or damaged or killed"


def test_the_test_module_of_the_page_runs(tmp_path: Path) -> None:
    (tmp_path / "snapshot_store.py").write_text(STORE)
    (tmp_path / "test_snapshot_store.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider", "-k", SOME]
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), "test_snapshot_store.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 10
