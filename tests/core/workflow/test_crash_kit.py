"""The published crash kit covers workflows: a SIGKILL at a point, recovery, and the same output and transcript."""

from tests.core.workflow import crash_agents

from holdfast.testing import crash_everywhere


def test_a_workflow_survives_crashes_at_its_points() -> None:
    report = crash_everywhere(crash_agents.trip, "Porto", sample=6, seed=1)
    assert len(report.trials) == 6


def test_the_writes_of_a_transaction_are_there_once_after_a_crash_at_every_point() -> None:
    """Each step returns how many rows it has, so a write that happened twice is another output."""
    report = crash_everywhere(crash_agents.seats, "4")
    planned = {trial.planned.rpartition(" of ")[0] for trial in report.trials}
    assert {f"{when} step {number}" for when in ("before", "after") for number in (1, 2, 3)} <= planned
    assert all(trial.exact for trial in report.trials)


def test_an_agent_with_phases_of_a_model_and_of_a_workflow_survives_crashes() -> None:
    report = crash_everywhere(crash_agents.phased, "Porto", sample=12, seed=3)
    assert len(report.trials) == 12
