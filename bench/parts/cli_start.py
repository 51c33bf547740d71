"""How long the command takes to start: `python -m bench.parts.cli_start`.

Each command takes turns with the bare interpreter, so that the noise of the machine meets both. The processor's time is
printed beside the clock's: it is what counts on a machine that has other things to do.
"""

import os
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import holdfast'": ["-c", "import holdfast"],
    "holdfast --help": ["-m", "holdfast", "--help"],
    "holdfast run --help": ["-m", "holdfast", "run", "--help"],
    "holdfast ls (a SQLite store with one run)": ["-m", "holdfast", "ls", "--store", "sqlite:.bench-cli.db"],
}
ROUNDS = 15


def once(arguments: list[str]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    took, after = time.perf_counter() - began, os.times()
    spent = after.children_user - before.children_user + after.children_system - before.children_system
    return took, spent


def main() -> None:
    subprocess.run(
        [sys.executable, "-m", "holdfast", "submit", "no-agent", "x", "--store", "sqlite:.bench-cli.db"],
        stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    try:
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
        for _ in range(ROUNDS):
            for name, arguments in COMMANDS.items():
                measured[name].append(once(arguments))
    finally:
        for ending in ("", "-wal", "-shm"):
            if os.path.exists(f".bench-cli.db{ending}"):
                os.remove(f".bench-cli.db{ending}")
    for name, figures in measured.items():
        clock, processor = (statistics.median(column) for column in zip(*figures, strict=True))
        print(f"{name:40} {clock * 1000:6.0f} ms, {processor * 1000:6.0f} ms of the processor")


if __name__ == "__main__":
    main()
