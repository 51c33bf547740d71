"""Measure holdfast against the raw limits of this machine, and with `--peers` against its peers.

Read every figure as a ratio: the seconds are those of this machine.
"""

import argparse
import signal
import sys
from pathlib import Path

from bench.figures import figures
from bench.guard import GuardResult, accept, baseline, compare, format_results
from bench.measurement import measure
from bench.plan import FULL, SHORT, WORKLOADS
from bench.records import Results, join_results, read, write
from bench.report import page_part, put_into, tables

_RESULTS_PATH = Path(__file__).parent / "results"
_PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def main() -> None:
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the job and the server too
    measured = read(asked.read) if asked.read else _measure(asked)
    print(tables(measured))
    if asked.report:
        # matplotlib is large and not a dependency of the tests.
        from bench.plots import draw

        draw(measured, _PAGE.parent / "assets")
        put_into(_PAGE, page_part(measured))
    known = figures(measured.records)
    if asked.accept:
        accept(known)
    if asked.guard:
        sys.exit(_report_guard(compare(known, baseline())))


def _report_guard(results: list[GuardResult]) -> int:
    if not results:
        print("\nthere is no baseline for this measurement: accept one with --accept")
        return 0
    print(f"\n{format_results(results)}")
    return 1 if any(result.change == "worse" for result in results) else 0


def _measure(asked: argparse.Namespace) -> Results:
    sizes = [
        size
        for size in (FULL if asked.peers else SHORT)
        if (not asked.only or size.workload in asked.only) and (not asked.sizes or size.number in asked.sizes)
    ]
    # A partial measurement does not replace a whole one.
    partial = (asked.only or asked.sizes or asked.repeats) and not asked.join
    kept = _RESULTS_PATH / f"{'partial' if partial else 'peers' if asked.peers else 'short'}.json"
    limit = asked.time_limit or (900.0 if asked.peers else 120.0)
    measured = measure(sizes, peers=asked.peers, repeats=asked.repeats, time_limit=limit)
    if asked.join and kept.exists():
        measured = join_results(read(kept), measured)
    write(kept, measured)
    return measured


def _workloads(text: str) -> list[str]:
    wanted = text.split(",")
    if unknown := set(wanted) - set(WORKLOADS):
        raise argparse.ArgumentTypeError(f"no workload {', '.join(sorted(unknown))}: there are {', '.join(WORKLOADS)}")
    return wanted


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--peers", action="store_true", help="all systems in full sizes (hours)")
    parser.add_argument("--only", type=_workloads, metavar="W1,W2", help="only these workloads")
    parser.add_argument("--sizes", type=_numbers, metavar="100,1000", help="only these sizes")
    parser.add_argument("--repeats", type=int, help="number of repeats")
    parser.add_argument("--time-limit", type=float, metavar="SECONDS", help="a job that takes longer has failed")
    parser.add_argument("--join", action="store_true", help="keep earlier results of other workloads and sizes")
    parser.add_argument("--from", type=Path, dest="read", metavar="FILE", help="use these results instead of measuring")
    parser.add_argument("--report", action="store_true", help="write tables and plots into the docs")
    parser.add_argument("--guard", action="store_true", help="compare with the baseline; exit 1 if a ratio got worse")
    parser.add_argument("--accept", action="store_true", help="make these results the baseline")
    return parser.parse_args()


if __name__ == "__main__":
    main()
