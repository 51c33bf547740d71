"""A run that repeatedly takes its process down is parked, and resumes when a person unparks it."""

import signal

import pytest
from tests.runtime.conftest import ProcessHarness, load_records

from holdfast.checkpoint.record import RunStatus
from holdfast.core.errors import RunParked

#: Longer than any backoff, for processes whose store has a clock that is ahead by this.
HOUR = 3600


def crash(harness: ProcessHarness, *command: str, later: int) -> None:
    """Start a process that the run takes down."""
    child = harness.start(*command, later=later)
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL


def recover(harness: ProcessHarness, later: int) -> str:
    """What a process says that recovers everything and lives."""
    child = harness.start("recover", later=later)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    return out


async def test_three_strikes_park_a_submitted_run_with_where_it_happened(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        await app.submit("errand", "note crash note", run_id="r")
        for life in range(4):  # the first finishes a step, which is not a strike
            crash(harness, "recover", later=life * HOUR)
        assert recover(harness, later=4 * HOUR) == "{'r': 'parked'}\n"
        parked = (await load_records(app))["r"]
        assert parked.status is RunStatus.PARKED
        assert parked.reason.startswith("poison: 3 owners in a row died or gave up in step 2 while calling crash ")
        with pytest.raises(RunParked) as told:
            await app.result("r")
        assert told.value.reason == "poison"
    assert harness.read_effects() == ["r note c0", *["r crash c1"] * 4]


async def test_unpark_lets_a_poisoned_run_go_on_with_three_new_lives(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        await app.submit("errand", "note crash note", run_id="r")
        for life in range(4):  # the first finishes a step, which is not a strike
            crash(harness, "recover", later=life * HOUR)
        recover(harness, later=4 * HOUR)
        await app.unpark("r")
        assert (await load_records(app))["r"].strikes == 0
        crash(harness, "recover", later=5 * HOUR)
        assert (await load_records(app))["r"].strikes == 1
        harness.set_flag("cured")
        assert recover(harness, later=6 * HOUR) == "{'r': 'completed'}\n"
        assert (await app.result("r")).output == "did note crash note"
    assert [deed for deed in harness.read_effects() if "note" in deed] == ["r note c0", "r note c2"]


async def test_a_program_that_asks_for_its_run_at_every_start_is_not_taken_down_indefinitely(
    harness: ProcessHarness,
) -> None:
    for life in range(3):
        crash(harness, "run", "r", "crash", later=life * HOUR)
    child = harness.start("run", "r", "crash", later=3 * HOUR)
    assert "RunParked: parked, poison" in child.communicate(timeout=60)[1]
    assert child.returncode == 1
    assert harness.read_effects() == ["r crash c0"] * 3
    async with harness.app() as app:
        with pytest.raises(RunParked, match="poison"):
            await app.run("errand", "crash", run_id="r")
        harness.set_flag("cured")
        # A person may, whatever came before.
        assert (await app.resume("r")).output == "did crash"


async def test_a_finished_step_clears_the_strikes(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        await app.submit("errand", "crash gate crash", run_id="r")
        crash(harness, "recover", later=0)
        crash(harness, "recover", later=HOUR)
        assert (await load_records(app))["r"].strikes == 2
        harness.set_flag("cured")
        serving = harness.start("recover", later=2 * HOUR)
        harness.wait_for_effect("r gate c1")
        assert (await load_records(app))["r"].strikes == 0
        serving.kill()
        serving.wait()
        harness.set_flag("open")
        assert recover(harness, later=3 * HOUR) == "{'r': 'completed'}\n"
        assert (await app.result("r")).output == "did crash gate crash"


async def test_a_run_whose_child_makes_progress_is_not_taken_for_poison(harness: ProcessHarness) -> None:
    """Each life of the parent ends in the same step of its own; its child is one step further every time."""
    async with harness.app() as app:
        await app.submit("errand", "delegate=stride+stride+stride+stride+stride", run_id="r")
        for life in range(5):
            crash(harness, "recover", later=life * HOUR)
        assert recover(harness, later=5 * HOUR) == "{'r': 'completed'}\n"
    assert sorted(set(harness.list_calls())) == ["stride"]


async def test_a_run_whose_child_makes_no_progress_is_parked_all_the_same(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        await app.submit("errand", "delegate=delegate=crash", run_id="r")
        for life in range(3):
            crash(harness, "recover", later=life * HOUR)
        assert recover(harness, later=3 * HOUR) == "{'r': 'parked'}\n"
        assert "while calling delegate" in (await load_records(app))["r"].reason
    assert harness.list_calls() == ["crash"] * 3
