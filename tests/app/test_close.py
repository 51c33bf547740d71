"""Leaving an App: its tasks end, also when its store or its ports cannot be closed."""

import asyncio
import logging

import pytest
from tests.core.recording_ports import RecordingAudit, RecordingBudget, RecordingPorts
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, WorkerSettings, ask_person
from holdfast.checkpoint.errors import StoreClosed, StoreUnavailable
from holdfast.core.observer import AttemptControl
from holdfast.db.tables import Tables, TablesError
from holdfast.events import CallsWaiting
from holdfast.stores.memory import MemoryStore


class Closable:
    """An audit and a budget that have to be closed, which may go wrong."""

    def __init__(self, *, audit_fails: bool = False) -> None:
        self.closed: list[str] = []
        self.audit, self.budget = _Audit(self, audit_fails), _Budget(self)


class _Audit:
    def __init__(self, both: Closable, fails: bool) -> None:
        self._both, self._fails = both, fails

    def begin(self, attempt: AttemptControl) -> RecordingAudit:
        return RecordingAudit(RecordingPorts()).begin(attempt)

    async def close(self) -> None:
        self._both.closed.append("audit")
        if self._fails:
            raise OSError("the disk is gone")


class _Budget(RecordingBudget):
    def __init__(self, both: Closable) -> None:
        super().__init__(RecordingPorts())
        self._both = both

    async def close(self) -> None:
        self._both.closed.append("budget")


@pytest.mark.parametrize("trouble", ["store", "audit"])
@pytest.mark.parametrize("body_fails", [True, False])
async def test_trouble_with_closing_is_logged_and_masks_nothing(
    trouble: str, body_fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = ProbeStore(MemoryStore())
    ports = Closable(audit_fails=trouble == "audit")
    app = App(
        [Agent(name="a", model=ScriptedModel("done"))],
        store,
        audit=ports.audit,
        budget=ports.budget,
        worker=WorkerSettings(handle_signals=False),
    )

    async def use() -> str:
        async with app:
            result = await app.run("a", "go")
            if trouble == "store":
                store.fail("deregister_worker", StoreUnavailable("the server is gone"))
            if body_fails:
                raise KeyError("of the host")
        return str(result.output)

    [came_out] = await asyncio.gather(use(), return_exceptions=True)
    assert str(came_out) == ("'of the host'" if body_fails else "done")
    assert ports.closed == ["audit", "budget"]
    assert store.calls[-1] == "close"
    [logged] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "could not be closed" in logged.message


class _Battery(_Budget):
    """A budget whose tables cannot be used."""

    tables = None

    async def open(self, tables: Tables) -> None:
        raise TablesError("a newer holdfast made them")


async def test_an_app_whose_battery_cannot_use_its_tables_does_not_open_and_closes_the_battery() -> None:
    ports = Closable()
    app = App([], MemoryStore(), budget=_Battery(ports))
    with pytest.raises(TablesError):
        await app.__aenter__()
    assert ports.closed == ["budget"]


async def test_a_closed_app_leaves_no_task_behind() -> None:
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("c", "ask_person", question="?"))), tools=[ask_person])
    before = asyncio.all_tasks()
    async with App([agent], MemoryStore()) as app:
        run_id = await app.submit("a", "go")
        events = app.events(run_id)
        while not isinstance(await anext(events), CallsWaiting):
            pass
        watching = asyncio.ensure_future(anext(events))
        idle = app.events(await app.submit("a", "go"))  # its watcher takes one event and no more
        await anext(idle)
        opened = asyncio.all_tasks() - before - {watching}
    with pytest.raises(StoreClosed):
        await watching
    await asyncio.sleep(0)  # a task that was cancelled ends in the next turn of the event loop
    assert [task for task in opened if not task.done()] == []
    assert asyncio.all_tasks() == before
    await idle.aclose()
