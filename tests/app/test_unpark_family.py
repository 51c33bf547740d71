"""A run that is parked because a run that it started is in doubt."""

import signal

from tests.app.conftest import Yard, records

from holdfast import App
from holdfast.checkpoint.lifecycle import Status
from holdfast.run.drive import UNKNOWN_OUTCOME


async def _family_in_doubt(yard: Yard, app: App) -> str:
    """The child of a parked run: it was taken down by a call that nobody may make again."""
    await app.submit("errand", "delegate=charge note", run_id="r")
    taken_down = yard.start("recover")
    taken_down.communicate(timeout=60)
    assert taken_down.returncode == -signal.SIGKILL
    await app.recover()
    family = await records(app)
    assert {record.status for record in family.values()} == {Status.PARKED}
    [child] = [record.run_id for record in family.values() if record.parent_run_id == "r"]
    return child


async def test_it_goes_on_and_its_child_with_it(yard: Yard) -> None:
    async with yard.app() as app:
        child = await _family_in_doubt(yard, app)
        await app.unpark("r")
        assert (await records(app))[child].status is Status.INTERRUPTED
        assert await _results(app, child) == [(UNKNOWN_OUTCOME, True)]
        # Of the call that started the child nothing is unknown: it is made again, and meets the child.
        assert await _results(app, "r") == []
        await app.recover()
        assert (await app.result("r")).output == "did delegate=charge note"
    assert yard.calls() == ["charge", "note"]


async def test_a_person_may_answer_for_the_child_first(yard: Yard) -> None:
    async with yard.app() as app:
        child = await _family_in_doubt(yard, app)
        await app.unpark(child, {"c0": {"receipt": 7}})
        # It waits for the run that started it.
        assert not (await app.recover()).fates
        await app.unpark("r")
        assert await _results(app, child) == [({"receipt": 7}, False)]
        await app.recover()
        assert (await app.result("r")).output == "did delegate=charge note"
    assert yard.calls() == ["charge", "note"]


async def _results(app: App, run_id: str) -> list[tuple[object, bool]]:
    """What was recorded of the calls that the last reply of a run asked for."""
    checkpoint = await app._operations.checkpoint(run_id)
    return [(result.content, result.error) for result in checkpoint.state.results.values()]
