"""`python -m holdfast.testing.simulation`: simulate the scripted agents of holdfast's own tests.

SIMULATE_SECONDS says for how long; the command ends with one line of figures, and with 1 if a schedule has failed.
"""

import argparse
import multiprocessing
import os
import random
import sys
import time

from holdfast.testing.simulation.simulate import Figures, format_failure, run_seed, shrink

_PROGRAM = "python -m holdfast.testing.simulation"
#: Seeds between the first ones of two processes.
_STRIDE = 10**7
#: Failures that a process prints. The others are counted.
_MAX_SHOWN = 5
#: Sets of text have the same order in every process that has the same hash seed. With an arena for each of the pooled
#: threads, glibc keeps 500 MB after some minutes; with one 70 MB.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "1"}


def main() -> int:
    """Run the command. Returns its exit code."""
    options = _parse()
    if not _ENVIRONMENT.items() <= os.environ.items():
        os.environ.update(_ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, "-m", "holdfast.testing.simulation", *sys.argv[1:]])
    if options.seed is not None:
        return _show_seed(options.seed, options.store)
    return _search(options)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__)
    parser.add_argument("--seed", type=int, help="simulate this seed alone, and print its trace")
    parser.add_argument("--store", choices=("memory", "sqlite"), help="default: the seed decides")
    parser.add_argument("--seconds", type=float, default=float(os.environ.get("SIMULATE_SECONDS", "3600")))
    parser.add_argument("--first", type=int, help="the first seed; default: a random one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: all cores")
    return parser.parse_args()


def _show_seed(seed: int, store: str | None) -> int:
    outcome = run_seed(seed, store)  # type: ignore[arg-type] # argparse has checked it
    print("\n".join(outcome.trace))
    if not outcome.problems:
        print(f"seed {seed} is fine")
        return 0
    print(format_failure(shrink(outcome), _make_command(seed, store)))
    return 1


def _make_command(seed: int, store: str | None) -> str:
    return f"{_PROGRAM} --seed {seed}{f' --store {store}' if store else ''}"


def _search(options: argparse.Namespace) -> int:
    first = random.SystemRandom().randrange(10**9) if options.first is None else options.first
    figures, failures = Figures(), 0
    end = time.monotonic() + options.seconds
    work = [(first + number * _STRIDE, end, options.store) for number in range(options.jobs)]
    with multiprocessing.get_context("fork").Pool(options.jobs) as pool:
        for found, failed in pool.imap_unordered(_run_until, work):
            figures.merge(found)
            failures += failed
    print(f"{figures}, first seed {first}, {failures} failed")
    return 1 if failures else 0


def _run_until(work: tuple[int, float, str | None]) -> tuple[Figures, int]:
    seed, end, store = work
    _pin(seed // _STRIDE)
    figures, failures = Figures(), 0
    while time.monotonic() < end:
        outcome = run_seed(seed, store)  # type: ignore[arg-type] # argparse has checked it
        figures.add(outcome)
        if outcome.problems:
            failures += 1
            if failures <= _MAX_SHOWN:
                print(format_failure(shrink(outcome), _make_command(seed, store)), flush=True)
        seed += 1
    return figures, failures


def _pin(number: int) -> None:
    """Keep this process on one core: its threads run in turn, and a switch between two cores costs a quarter more."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[number % len(cores)]})


if __name__ == "__main__":
    sys.exit(main())
