"""The published crash kit covers workflows: a SIGKILL at a point, recovery, and the same output and transcript."""

from tests.core.workflow import crash_agents

from holdfast.testing import crash_everywhere


def test_a_workflow_survives_crashes_at_its_points() -> None:
    report = crash_everywhere(crash_agents.trip, "Porto", sample=6, seed=1)
    assert len(report.trials) == 6
