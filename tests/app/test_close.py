"""Leaving an App whose store or ports cannot be closed."""

import asyncio
import logging

import pytest
from tests.core.recording_ports import RecordingAudit, RecordingBudget, RecordingPorts
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App, WorkerSettings
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.core.observer import AttemptControl
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
