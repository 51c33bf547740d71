"""Measure holdfast against the raw limits of this machine, and with `--peers` against its peers.

Read every figure as a ratio: the seconds are those of this machine.
"""

import argparse
import signal
import sys
from pathlib import Path

from bench.figures import Figures
from bench.guard import accept, compare, format_results, read_baseline
from bench.machine import describe_machine
from bench.measurement import estimate, measure
from bench.plan import WORKLOADS, all_sizes
from bench.records import Record, Results, join_results, read, write
from bench.report import details_page, front_page, put_into
from bench.runner import ROOT

_RESULTS_PATH = Path(__file__).parent / "results"
_WHOLE = _RESULTS_PATH / "peers.json"
_DOCS = ROOT / "docs"


def main() -> None:
    asked = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the job and the server too
    measured = read(asked.read) if asked.read else _measure(asked)
    print(details_page(measured))
    if asked.report:
        # matplotlib is large and not a dependency of the tests.
        from bench.plots import draw

        draw(measured, _DOCS / "assets")
        put_into(_DOCS / "benchmarks.md", front_page(measured))
        put_into(_DOCS / "benchmarks-details.md", details_page(measured))
    figures = Figures(measured.records)
    if asked.accept:
        accept(figures)
    if asked.guard:
        sys.exit(_run_guard(figures))


def _run_guard(figures: Figures) -> int:
    results = compare(figures, read_baseline())
    if not results:
        print("\nthere is no baseline for this measurement: accept one with --accept")
        return 0
    print(f"\n{format_results(results)}")
    return 1 if any(result.change == "worse" for result in results) else 0


def _measure(asked: argparse.Namespace) -> Results:
    sizes = [
        (workload, size)
        for workload, size in all_sizes(peers=asked.peers)
        if (not asked.only or workload in asked.only) and (not asked.sizes or size.number in asked.sizes)
    ]
    known = read(_WHOLE).records if _WHOLE.exists() else []
    seconds, jobs, found = estimate(sizes, known, peers=asked.peers, repeats=asked.repeats)
    print(f"about {seconds / 60:.0f} minutes; {found} of {jobs} jobs were measured before", file=sys.stderr, flush=True)
    if asked.estimate:
        sys.exit(0)
    # A partial measurement does not replace a whole one.
    partial = (asked.only or asked.sizes or asked.repeats) and not asked.join
    kept = _RESULTS_PATH / f"{'partial' if partial else 'peers' if asked.peers else 'short'}.json"
    before = read(kept).records if asked.join and kept.exists() else []
    machine = describe_machine(ROOT)

    def save(records: list[Record]) -> None:
        write(kept, Results(machine=machine, records=join_results(before, records)))

    measure(sizes, peers=asked.peers, repeats=asked.repeats, time_limit=asked.time_limit, save=save)
    return read(kept)


def _workloads(text: str) -> list[str]:
    wanted = text.split(",")
    if unknown := set(wanted) - set(WORKLOADS):
        raise argparse.ArgumentTypeError(f"no workload {', '.join(sorted(unknown))}: there are {', '.join(WORKLOADS)}")
    return wanted


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--peers", action="store_true", help="all systems in all sizes (70 minutes)")
    parser.add_argument("--only", type=_workloads, metavar="w1,w2", help="only these workloads")
    parser.add_argument("--sizes", type=_numbers, metavar="100,1000", help="only these sizes")
    parser.add_argument("--repeats", type=int, help="number of repeats")
    parser.add_argument(
        "--time-limit", type=float, default=180.0, metavar="SECONDS", help="a job that takes longer has failed"
    )
    parser.add_argument("--estimate", action="store_true", help="print how long it would take, by the last results")
    parser.add_argument("--join", action="store_true", help="keep earlier results of other workloads and sizes")
    parser.add_argument("--from", type=Path, dest="read", metavar="FILE", help="use these results instead of measuring")
    parser.add_argument("--report", action="store_true", help="write tables and plots into the docs")
    parser.add_argument("--guard", action="store_true", help="compare with the baseline; exit 1 if a ratio got worse")
    parser.add_argument("--accept", action="store_true", help="make these results the baseline")
    return parser.parse_args()


if __name__ == "__main__":
    main()
