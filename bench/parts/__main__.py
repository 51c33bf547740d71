"""Measure single parts, beside the raw limits of this machine: `python -m bench.parts`, or with some of their names.

For whoever works on a part; what holdfast promises as a whole is measured by `python -m bench`. Every figure is to be
read as a ratio to what stands beside it: the seconds are this machine's.
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
