"""The arithmetic of the benchmarks: ratios, spread, targets, and what is kept of a measurement."""

from pathlib import Path

import pytest
from bench.figures import Figure, Figures, times
from bench.measurement import estimate
from bench.plan import WORKLOADS, Size, Subject, all_sizes, jobs, limit_of
from bench.records import Record, condense_result, join_results, read, write
from bench.targets import outcomes
from tests.bench.sample_records import many_runs, one_run, record, results


def the_figure(found: Figures, subject: Subject, measure: str) -> Figure:
    (figure,) = [each for each in found if each.subject == subject and each.measure.name == measure]
    return figure


OURS = Subject("holdfast", "sqlite")


def test_a_ratio_is_taken_within_each_repeat_and_then_the_median() -> None:
    raw, ours = [1.0, 10.0, 2.0], [2.0, 11.0, 6.0]
    found = Figures(
        [one_run("raw", "sqlite-1", seconds, repeat=at) for at, seconds in enumerate(raw)]
        + [one_run("holdfast", "sqlite", seconds, repeat=at) for at, seconds in enumerate(ours)]
    )
    step = the_figure(found, OURS, "step")
    assert step.value.median == pytest.approx(6.0)
    assert step.ratio is not None
    assert (step.ratio.median, step.ratio.low, step.ratio.high) == pytest.approx((2.0, 1.1, 3.0))


def test_a_repeat_whose_limit_failed_has_no_ratio() -> None:
    found = Figures(
        [
            record("w1", "raw", "sqlite-1", 1000, failed="no room"),
            one_run("raw", "sqlite-1", 1.0, repeat=1),
            one_run("holdfast", "sqlite", 5.0),
            one_run("holdfast", "sqlite", 2.0, repeat=1),
        ]
    )
    assert the_figure(found, OURS, "step").ratios == {1: 2.0}


def test_a_measure_that_a_program_lacks_is_left_out() -> None:
    found = Figures([record("w3", "restate", "server", 1000, find=1.0, last=9.0)])
    assert {figure.measure.name for figure in found} == {"find", "last"}


def test_a_step_of_two_commits_is_compared_with_two_raw_commits() -> None:
    assert limit_of("w1", Subject("holdfast", "sqlite-once")) == Subject("raw", "sqlite-2")
    assert limit_of("w2", Subject("holdfast", "postgres")) == Subject("raw", "postgres-group-1")
    assert limit_of("w1", Subject("dbos", "sqlite")) == Subject("raw", "sqlite-2")
    assert limit_of("w1", Subject("restate", "server")) == Subject("raw", "file")
    assert limit_of("w5", Subject("dbos", "dbos-sqlite")) == Subject("pydantic_ai", "bare")
    assert limit_of("w1", Subject("raw", "sqlite-1")) is None


def test_every_limit_is_measured_with_the_subjects_that_need_it() -> None:
    for workload, size in all_sizes(peers=True):
        asked = [job.subject for job in jobs(workload, size, peers=True)]
        for subject in asked:
            limit = limit_of(workload, subject)
            assert limit is None or limit in asked


def test_make_bench_measures_our_own_systems_in_some_of_the_sizes() -> None:
    short, whole = list(all_sizes(peers=False)), list(all_sizes(peers=True))
    assert all(each in whole for each in short)
    assert ("w8", 1_000_000) not in [(workload, size.number) for workload, size in short]
    systems = {job.subject.system for workload, size in short for job in jobs(workload, size, peers=False)}
    assert systems == {"raw", "holdfast", "pydantic_ai"}


def test_a_quadratic_peer_is_not_measured_in_the_longest_run() -> None:
    longest = [str(job.subject) for job in jobs("w1", Size(5000), peers=True)]
    assert "langgraph sqlite" not in longest
    assert "langgraph sqlite-delta" in longest


def test_a_peer_takes_fewer_steps_where_it_would_take_minutes() -> None:
    many = WORKLOADS["w2"].sizes[-1]
    steps = {str(job.subject): job.numbers["steps"] for job in jobs("w2", many, peers=True)}
    assert steps["holdfast sqlite"] == steps["raw sqlite-group-1"] == 20
    assert steps["dbos sqlite"] == 5


def test_the_duration_is_estimated_from_earlier_jobs_and_long_jobs_are_made_once() -> None:
    sizes = [("w2", Size(128, 3, {"steps": 20}))]
    known = [many_runs("raw", variant, 1000.0) for variant in WORKLOADS["w2"].systems["raw"]]
    known += [many_runs("holdfast", variant, 1000.0) for variant in WORKLOADS["w2"].systems["holdfast"]]
    known[0].took = 60.0
    seconds, asked, found = estimate(sizes, known, peers=False, repeats=None)
    assert (asked, found) == (9, 9)
    assert seconds == 60.0 + 8 * 3 * 1.0


def judge(*records: Record) -> dict[str, tuple[object, bool | None]]:
    """Return what was measured and whether it meets its target, of the targets that were measured."""
    found = outcomes(Figures(records))
    return {f"{each.words}: {each.what}": (each.measured, each.met) for each in found if each.measured is not None}


def test_a_target_is_judged_by_the_limit_and_by_the_best_peer() -> None:
    assert judge(
        many_runs("raw", "sqlite-group-1", 1000),
        many_runs("holdfast", "sqlite", 300),
        many_runs("holdfast", "sqlite-once", 300),
        many_runs("dbos", "sqlite", 10),
        many_runs("restate", "server", 20),
    ) == {
        "many runs: 12 times the best peer: holdfast sqlite-once, 128": (pytest.approx(15), True),
        "many runs: a third of raw group commit: holdfast sqlite, 128": (pytest.approx(0.3), False),
    }


def test_of_times_the_best_peer_is_the_one_that_takes_least() -> None:
    (judged,) = judge(
        one_run("holdfast", "sqlite-once", 1.0), one_run("dbos", "sqlite", 9.0), one_run("restate", "server", 3.0)
    ).values()
    assert judged == (pytest.approx(3.0), False)


def test_a_pydantic_ai_agent_is_compared_with_a_bare_one_after_its_commits_are_taken_off() -> None:
    (judged,) = judge(
        record("w5", "raw", "sqlite-2", 50, seconds=2.0),
        record("w5", "pydantic_ai", "bare", 50, seconds=10.0),
        record("w5", "pydantic_ai", "holdfast-sqlite", 50, seconds=14.0),
    ).values()
    assert judged == (pytest.approx(1.2), True)


def test_a_fleet_that_does_not_grow_is_excused_only_by_full_processors() -> None:
    def fleet(busy: float) -> list[bool | None]:
        seconds = {1: 4.0, 2: 2.0, 4: 2.0}
        records = [
            record("w7", "holdfast", "postgres", workers, runs=10, steps=20, seconds=took, machine_busy=busy)
            for workers, took in seconds.items()
        ]
        return [met for _, met in judge(*records).values()]

    assert fleet(busy=0.5) == [True, False]
    assert fleet(busy=0.95) == [True, True]


def test_thousands_of_step_times_become_a_short_curve() -> None:
    seconds = [1.0] * 2500 + [2.0] * 2500
    short = condense_result({"seconds": 7500.0, "step_seconds": seconds})
    assert (short["first_steps"], short["last_steps"]) == (1.0, 2.0)
    assert len(short["curve"]) < 50
    assert short["curve"][0][1] == 1.0
    assert short["curve"][-1][1] == 2.0
    assert "step_seconds" not in short


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    made = results(one_run("raw", "file", 1.5), record("w2", "dbos", "postgres", 1000, failed="pool timeout"))
    write(tmp_path / "new" / "results.json", made)
    assert read(tmp_path / "new" / "results.json") == made


def test_a_later_measurement_replaces_an_earlier_one() -> None:
    earlier = results(one_run("raw", "file", 1.0), one_run("raw", "file", 2.0, size=10), many_runs("raw", "file", 3.0))
    later = results(one_run("raw", "file", 4.0))
    assert join_results(earlier.records, later.records) == [earlier.records[1], later.records[0], earlier.records[2]]


def test_multiples_are_taken_repeat_by_repeat() -> None:
    found = Figures(
        [one_run("dbos", "sqlite", 8.0), one_run("dbos", "sqlite", 90.0, repeat=1), one_run("holdfast", "sqlite", 2.0)]
    )
    over, under = (the_figure(found, Subject(system, "sqlite"), "step") for system in ("dbos", "holdfast"))
    spread = times(over, under)
    assert spread is not None
    assert spread.median == 4.0
