"""Runs that start runs that start runs, in processes that are killed."""

import pytest
from tests.runtime.conftest import ProcessHarness, load_records

from holdfast import Usage
from holdfast.checkpoint.record import RunStatus

#: The child notes something, hands on `gate` and then `note`.
PROMPT = "delegate=note+delegate=gate+delegate=note"
#: Two requests of the run, four of its child, two of each grandchild; and each tool call.
USED = Usage(input_tokens=10, requests=10, tool_calls=6)


async def test_three_levels_go_on_in_another_process_and_their_usage_adds_up(fleet_harness: ProcessHarness) -> None:
    first = fleet_harness.start("serve")
    async with fleet_harness.app() as app:
        await app.submit("errand", PROMPT, run_id="r", caller_id="ann")
        fleet_harness.wait_for_calls("gate", 1)
        first.kill()
        first.wait()
        family = await load_records(app)
        assert len(family) == 3
        [child] = [record for record in family.values() if record.parent_run_id == "r"]
        [grandchild] = [record for record in family.values() if record.parent_run_id == child.run_id]
        assert {record.caller_id for record in family.values()} == {"ann"}
        fleet_harness.set_flag("open")
        # Recovery starts the run; the run starts its child again, and that one its own.
        report = await app.recover()
        assert list(report.statuses) == ["r"]
        result = await app.result("r")
        assert result.usage == USED
        assert {record.status for record in (await load_records(app)).values()} == {RunStatus.DONE}
        assert len(await load_records(app)) == 4
    assert fleet_harness.list_calls() == ["note", "gate", "gate", "note"]
    assert fleet_harness.read_effects()[1] == fleet_harness.read_effects()[2] == f"{grandchild.run_id} gate c0"


@pytest.mark.parametrize("kills", [0, 2])
async def test_a_family_that_is_killed_again_and_again_uses_what_an_unharmed_one_does(
    harness: ProcessHarness, kills: int
) -> None:
    async with harness.app() as app:
        await app.submit("errand", PROMPT, run_id="r")
        for life in range(kills):
            child = harness.start("recover", later=life * 60)
            harness.wait_for_calls("gate", life + 1)
            child.kill()
            child.wait()
        harness.set_flag("open")
        last = harness.start("recover", later=kills * 60)
        assert last.communicate(timeout=60)[0] == "{'r': 'completed'}\n"
        assert (await app.result("r")).usage == USED
        assert {record.status for record in (await load_records(app)).values()} == {RunStatus.DONE}
    assert harness.list_calls().count("note") == 2
