"""Measure single parts against the raw limits of this machine: `python -m bench.parts [NAME ...]`.

`python -m bench` measures holdfast as a whole. Read every figure as a ratio: the seconds are those of this machine.
"""

import subprocess
import sys
from pathlib import Path


def names() -> list[str]:
    """The benchmarks: every module here that can be run by itself."""
    folder = Path(__file__).parent
    return sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("_"))


def main() -> None:
    wanted = sys.argv[1:] or names()
    unknown = sorted(set(wanted) - set(names()))
    if unknown:
        sys.exit(f"no benchmark {', '.join(unknown)}: there are {', '.join(names())}")
    for name in wanted:
        print(f"\n== {name}", flush=True)
        # Each in a process of its own, so that none measures what another has left in memory.
        subprocess.run([sys.executable, "-m", f"bench.parts.{name}"], check=True)


if __name__ == "__main__":
    main()
