"""Virtual environments for systems that need other packages: `python -m bench.environment` builds all of them.

From `bench/environments/NAME.txt` (pins); a folder `bench/environments/NAME` with a package.json adds npm packages.
HOLDFAST_BENCH_ENVIRONMENTS names the folder that keeps them, `bench/.environments` if it is not set.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

_PINS = Path(__file__).parent / "environments"
_BUILT = Path(os.environ.get("HOLDFAST_BENCH_ENVIRONMENTS", Path(__file__).parent / ".environments")).resolve()


def python_for(system: str) -> Path:
    """Return the interpreter with the system's packages. Build its environment if it is missing or has other pins.

    Raises:
        RuntimeError: it could not be built.
    """
    pins, place = _PINS / f"{system}.txt", _BUILT / system
    if not pins.exists():
        return Path(sys.executable)
    ready, wanted = place / ".ready", _digest(system)
    if not ready.exists() or ready.read_text() != wanted:
        print(f"building the environment of {system}", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", str(place)], Path.cwd())
        _run([str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement", str(pins)], Path.cwd())
        if (_PINS / system).is_dir():
            shutil.copytree(_PINS / system, place, dirs_exist_ok=True)
            _run(["npm", "install", "--silent", "--no-audit", "--no-fund"], place)
        ready.write_text(wanted)
    return place / "bin" / "python"


def _digest(system: str) -> str:
    """Hash all files that define the environment."""
    folder = _PINS / system
    sources = [_PINS / f"{system}.txt", *(sorted(folder.iterdir()) if folder.is_dir() else ())]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ... failed: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    for path in sorted(_PINS.glob("*.txt")):
        print(python_for(path.stem))
