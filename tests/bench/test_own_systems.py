"""Each of our own programs carries out its smallest jobs, as the harness starts them."""

from collections.abc import Iterator

import pytest
from bench.figures import MEASURES, figures
from bench.plan import Size, Subject
from bench.runner import Runner
from tests.postgres_server import shared_server

FEW = {"steps": 3}
JOBS = [
    (Size("w1", 3), "raw", "file"),
    (Size("w1", 3), "raw", "postgres-2"),
    (Size("w2", 2, 1, FEW), "raw", "sqlite-group-2"),
    (Size("w3", 2, 1, FEW), "raw", "sqlite-1"),
    (Size("w4", 3), "raw", "sqlite-1"),
    (Size("w1", 3), "holdfast", "sqlite-once"),
    (Size("w2", 2, 1, FEW), "holdfast", "postgres"),
    (Size("w3", 2, 1, FEW), "holdfast", "sqlite"),
    (Size("w4", 3), "holdfast", "sqlite"),
    (Size("w6", 2, 1, {"seconds": 1}), "holdfast", "sqlite"),
    (Size("w7", 2, 1, {"runs": 3, "steps": 3}), "holdfast", "postgres"),
    (Size("w8", 5, 1, {"seconds": 1}), "holdfast", "sqlite"),
    (Size("w9", 30), "holdfast", "postgres"),
    (Size("w5", 3), "pydantic_ai", "bare"),
    (Size("w5", 3), "pydantic_ai", "holdfast-sqlite"),
]

#: What is idle, and what keeps nothing, may cost nothing.
MAY_BE_ZERO = ("processor", "idle", "memory", "disk")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner(time_limit=60, server=shared_server())
    yield runner
    runner.close()


@pytest.mark.parametrize(("size", "system", "variant"), JOBS, ids=lambda value: getattr(value, "workload", value))
def test_a_program_gives_every_figure_of_its_workload(runner: Runner, size: Size, system: str, variant: str) -> None:
    record = runner.run_job(size, Subject(system, variant), 0)
    assert record.failed is None
    found = {figure.measure.name: figure.value.median for figure in figures([record])}
    assert found.keys() == {measure.name for measure in MEASURES[size.workload]}
    assert all(value > 0 for name, value in found.items() if name not in MAY_BE_ZERO)


def test_a_job_that_fails_is_a_record_that_says_why_and_names_no_place(runner: Runner) -> None:
    record = runner.run_job(Size("w1", 3), Subject("holdfast", "parchment"), 0)
    assert record.result is None
    assert record.failed == "KeyError: 'parchment'"


def test_a_job_that_takes_too_long_has_failed() -> None:
    record = Runner(time_limit=0.01).run_job(Size("w1", 3), Subject("raw", "file"), 0)
    assert record.failed == "not done after 0 s"
