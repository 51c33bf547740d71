"""Install the wheel in clean environments and try it: `python -m tests.packaging.check_wheel [PYTHON...]`.

Without arguments it takes every supported Python on the path, or else under pyenv. For each one it makes an
environment without extras, one for each extra, and one whose `holdfast demo` kills and resumes a run. Packages come
from the index that pip uses.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.packaging.distribution import MODULES_BY_EXTRA, ROOT, build_distribution

SUPPORTED = ("python3.11", "python3.12", "python3.13", "python3.14")

#: A run that is executed twice under one id: the second time its recorded result is returned.
DURABLE_RUN = """
from holdfast import Agent, App, Reply

async def model(messages, tools):
    return Reply(text="done")

for _ in range(2):
    print(App([Agent(name="a", model=model)]).run_sync("a", "go", run_id="r").output)
"""


def main() -> None:
    """Try all environments, print a line for each, and exit with 1 at the first that fails."""
    pythons = sys.argv[1:] or [python for name in SUPPORTED if (python := _find_python(name))]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        distribution = build_distribution(folder)
        for python in pythons:
            _try_environment(folder / "bare", python, f"{distribution.wheel}", DURABLE_RUN)
            _try_environment(folder / "sdist", python, f"{distribution.sdist}", DURABLE_RUN)
            for extra, module in MODULES_BY_EXTRA.items():
                _try_environment(folder / extra, python, f"{distribution.wheel}[{extra}]", f"import {module}")
            demo = "import sys\nsys.argv[1:] = ['demo', '--fast']\nfrom holdfast.cli.main import main\nmain()"
            _try_environment(folder / "demo", python, f"{distribution.wheel}[cli]", demo)


def _find_python(name: str) -> str | None:
    """Find a working interpreter. A shim of pyenv works only for the versions that are switched on."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [name, *map(str, root.glob(f"versions/*/bin/{name}"))]
    return next((each for each in candidates if shutil.which(each) and not _run([each, "--version"]).returncode), None)


def _try_environment(folder: Path, python: str, requirement: str, program: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    inside = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(inside), "install", "--quiet"]
    commands: list[list[str | Path]] = [
        [python, "-m", "venv", "--without-pip", folder],
        [*install, "--constraint", ROOT / "constraints.txt", requirement],
        [inside, "-c", program],
    ]
    for command in commands:
        done = _run(command, folder)
        if done.returncode:
            sys.exit(f"{python}: {requirement}: {done.stdout}{done.stderr}")
    print(f"{python}: {folder.name} works", flush=True)


def _run(command: list[str | Path] | list[str], folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    main()
