"""Cancelling a run that nobody drives, and that has started runs of its own."""

from datetime import timedelta

import pytest
from tests.app.conftest import Yard, records
from tests.app.errands import opened
from tests.probe_store import ProbeStore

from holdfast import App
from holdfast.checkpoint.errors import StoreFull
from holdfast.checkpoint.lifecycle import Status
from holdfast.checkpoint.opening import store_from_url

#: What a store that takes nothing more does all the same.
_HARMLESS = {"open", "close", "enlist", "discharge", "cancels", "changed", "purge"}


async def killed_family(yard: Yard, app: App) -> None:
    """A run, its child and its grandchild, whose process was killed while the youngest waited at the gate."""
    await app.submit("errand", "delegate=delegate=gate note", run_id="r")
    process = yard.start("serve")
    yard.wait_for_calls("gate", 1)
    process.kill()
    process.wait()
    assert len(await records(app)) == 3
    yard.make_true("open")


async def test_the_runs_that_it_has_started_are_cancelled_with_it(fleet_yard: Yard) -> None:
    async with fleet_yard.app() as app:
        await killed_family(fleet_yard, app)
        await app.cancel("r")
        assert [record.status for record in (await records(app)).values()] == [Status.CANCELLED] * 3
        assert (await app.recover()).fates == {}
    assert fleet_yard.calls() == ["gate"]


async def test_so_they_are_if_its_owner_died_before_it_heard_of_the_cancel(fleet_yard: Yard) -> None:
    async with fleet_yard.app() as app:
        await killed_family(fleet_yard, app)
        assert app.store is not None
        await app.store.request_cancel("r")
        await app.recover()
        assert [record.status for record in (await records(app)).values()] == [Status.CANCELLED] * 3
        assert (await app.recover()).fates == {}
    assert fleet_yard.calls() == ["gate"]


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("nth", range(14))
async def test_a_cancel_that_fails_half_way_leaves_no_child_that_goes_on_by_itself(
    yard: Yard, nth: int, for_good: bool
) -> None:
    async with yard.app() as app:
        await killed_family(yard, app)
    store = ProbeStore(store_from_url(yard.url))
    calls = 0

    async def refuse(method: str) -> None:
        nonlocal calls
        if method in _HARMLESS:
            return
        calls += 1
        if calls == nth + 1 or (for_good and calls > nth):
            raise StoreFull("no room")

    async with yard.app(store=store) as app:
        store.before = refuse
        with pytest.raises(StoreFull):
            await app.cancel("r")
    await store.inner.close()
    async with yard.app(store=opened(yard.url, timedelta(hours=1))) as app:  # the backoffs are over
        await app.recover()
        family = await records(app)
        if family["r"].status is Status.DONE:
            assert list(family) == ["r"]
            assert yard.calls() == ["gate", "gate", "note"]
        else:
            assert {record.status for record in family.values()} == {Status.CANCELLED}
            assert yard.calls() == ["gate"]
