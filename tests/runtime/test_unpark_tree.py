"""A run that is parked because a run that it started is in doubt."""

import signal

from tests.runtime.conftest import ProcessHarness, load_records

from holdfast import App
from holdfast.checkpoint.codec import decode_run
from holdfast.checkpoint.record import RunStatus
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.run.messages import NATIVE_CODEC


async def _family_in_doubt(harness: ProcessHarness, app: App) -> str:
    """The child of a parked run: it was taken down by a call that must not be repeated."""
    await app.submit("errand", "delegate=charge note", run_id="r")
    taken_down = harness.start("recover")
    taken_down.communicate(timeout=60)
    assert taken_down.returncode == -signal.SIGKILL
    await app.recover()
    family = await load_records(app)
    assert {record.status for record in family.values()} == {RunStatus.PARKED}
    [child] = [record.run_id for record in family.values() if record.parent_run_id == "r"]
    return child


async def test_it_continues_and_its_child_with_it(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        child = await _family_in_doubt(harness, app)
        await app.unpark("r")
        assert (await load_records(app))[child].status is RunStatus.INTERRUPTED
        assert await _results(app, child) == [(UNKNOWN_OUTCOME, True)]
        # Nothing about the call that started the child is unknown: it is repeated, and meets the child.
        assert await _results(app, "r") == []
        await app.recover()
        assert (await app.result("r")).output == "did delegate=charge note"
    assert harness.list_calls() == ["charge", "note"]


async def test_a_person_may_answer_for_the_child_first(harness: ProcessHarness) -> None:
    async with harness.app() as app:
        child = await _family_in_doubt(harness, app)
        await app.unpark(child, {"c0": {"receipt": 7}})
        # It waits for the run that started it.
        assert not (await app.recover()).statuses
        await app.unpark("r")
        assert await _results(app, child) == [({"receipt": 7}, False)]
        await app.recover()
        assert (await app.result("r")).output == "did delegate=charge note"
    assert harness.list_calls() == ["charge", "note"]


async def _results(app: App, run_id: str) -> list[tuple[object, bool]]:
    """What was recorded of the calls that the last reply of a run asked for."""
    checkpoint = decode_run(await app.open_store.load(run_id), NATIVE_CODEC)
    return [(result.content, result.error) for result in checkpoint.state.results.values()]
