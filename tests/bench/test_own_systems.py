"""Each of our own programs carries out its smallest jobs, as the harness starts them."""

from collections.abc import Iterator

import pytest
from bench.figures import Figures
from bench.plan import WORKLOADS, Job, Size, Subject
from bench.runner import Runner
from tests.postgres_server import shared_server

FEW = {"steps": 3}
JOBS = [
    Job("w1", Size(3), Subject("raw", "file")),
    Job("w1", Size(3), Subject("raw", "postgres-2")),
    Job("w2", Size(2, 1, FEW), Subject("raw", "sqlite-group-2")),
    Job("w3", Size(2, 1, FEW), Subject("raw", "sqlite-1")),
    Job("w1", Size(3), Subject("holdfast", "sqlite-once")),
    Job("w2", Size(2, 1, FEW), Subject("holdfast", "postgres")),
    Job("w3", Size(2, 1, FEW), Subject("holdfast", "sqlite")),
    Job("w4", Size(3), Subject("holdfast", "sqlite")),
    Job("w5", Size(3), Subject("pydantic_ai", "bare")),
    Job("w5", Size(3), Subject("pydantic_ai", "holdfast-sqlite")),
    Job("w6", Size(2, 1, {"seconds": 1}), Subject("holdfast", "sqlite")),
    Job("w7", Size(2, 1, {"runs": 3, "steps": 3}), Subject("holdfast", "postgres")),
    Job("w8", Size(90), Subject("holdfast", "sqlite")),
    Job("w8", Size(90), Subject("holdfast", "postgres")),
    Job("w9", Size(2, 1, FEW), Subject("holdfast", "sqlite")),
    Job("w11", Size(3, 1, {"runs": 2, "parallel": 1}), Subject("raw", "sqlite-1")),
    Job("w11", Size(3, 1, {"runs": 2, "parallel": 1}), Subject("holdfast", "sqlite-once")),
    Job("w12", Size(3, 1, {"runs": 4, "parallel": 2}), Subject("raw", "postgres-group-1")),
    Job("w12", Size(3, 1, {"runs": 4, "parallel": 2}), Subject("holdfast", "postgres")),
    Job("w13", Size(4), Subject("raw", "sqlite-1")),
    Job("w13", Size(4), Subject("holdfast", "sqlite")),
    Job("w13", Size(4), Subject("holdfast", "sqlite-left")),
    Job("w13", Size(4), Subject("holdfast", "sqlite-left-restart")),
]

#: What is idle, and what keeps nothing, may cost nothing.
MAY_BE_ZERO = ("processor", "idle", "memory", "disk")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner(time_limit=60, server=shared_server())
    yield runner
    runner.close()


@pytest.mark.parametrize("job", JOBS, ids=str)
def test_a_program_gives_every_figure_of_its_workload(runner: Runner, job: Job) -> None:
    record = runner.run_job(job, 0)
    assert record.failed is None
    found = {figure.measure.name: figure.value.median for figure in Figures([record])}
    assert found.keys() == {measure.name for measure in WORKLOADS[job.workload].measures}
    assert all(value > 0 for name, value in found.items() if name not in MAY_BE_ZERO)


def test_a_job_that_fails_is_a_record_that_says_why_and_names_no_place(runner: Runner) -> None:
    record = runner.run_job(Job("w1", Size(3), Subject("holdfast", "parchment")), 0)
    assert record.result is None
    assert record.failed == "KeyError: 'parchment'"


def test_a_job_that_takes_too_long_has_failed() -> None:
    record = Runner(time_limit=0.01).run_job(Job("w1", Size(3), Subject("raw", "file")), 0)
    assert record.failed == "not done after 0 s"
