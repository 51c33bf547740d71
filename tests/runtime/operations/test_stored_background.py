"""Runs that a run starts in the background: how they are queued, read, and ended with their parent."""

from datetime import timedelta

import pytest
from tests.scripted_model import ScriptedModel

from holdfast import Agent, App
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.checkpoint.store import END, get_record
from holdfast.core.errors import RunParked
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import ENDED_TOPIC, MESSAGE_TOPIC, Mail
from holdfast.runtime.operations.stored_background import StoredBackground, has_outlived_parent
from holdfast.stores.memory import MemoryStore
from holdfast.testing.store_processes.store_under_test import add_worker

DAY = timedelta(days=1)


def make_child(run_id: str, parent: str | None = "p", *, background: bool = True) -> RunInfo:
    return RunInfo(run_id=run_id, agent_name="a", parent_run_id=parent, background=background)


async def leave(store: MemoryStore, run_id: str, status: RunStatus, reason: str = "") -> None:
    claim = await store.claim(run_id, await add_worker(store))
    await store.release(claim, Release(status=status, reason=reason, retention=DAY))


async def test_a_run_is_queued_once_and_its_id_belongs_to_who_started_it() -> None:
    store = MemoryStore()
    await store.open()
    background = StoredBackground(StoreCheckpoints(store))
    assert [await background.submit(make_child("c")) for _ in range(2)] == [True, False]
    with pytest.raises(RunParked, match="this run has not started run c"):
        await background.submit(make_child("c", "another"))
    await background.submit(make_child("d"))
    await background.submit(make_child("awaited", background=False))
    await background.submit(make_child("e", "another"))
    assert [(each.run_id, each.status, each.outcome) for each in await background.list_children("p")] == [
        ("c", RunStatus.QUEUED, None),
        ("d", RunStatus.QUEUED, None),
    ]


async def test_an_ended_run_is_read_with_its_outcome() -> None:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        background = StoredBackground(app._stored.checkpoints)
        assert await background.read("r") is None
        await app.submit("a", "go", run_id="r")
        queued = await background.read("r")
        assert queued is not None
        assert (queued.status, queued.agent_name, queued.outcome) == (RunStatus.QUEUED, "a", None)
        await app.run("a", "go", run_id="r")
        done = await background.read("r")
        assert done is not None
        assert done.outcome is not None
        assert (done.outcome.output, done.outcome.error) == ("done", None)
        for run_id, kept in (("damaged", "entry 3 is missing"), ("cancelled", "by a person")):
            await app.submit("a", "go", run_id=run_id)
            await leave(store, run_id, RunStatus.FAILED, kept)
            failed = await background.read(run_id)
            assert failed is not None
            assert failed.outcome is not None
            assert (failed.status, failed.outcome.error, failed.outcome.output) == (RunStatus.FAILED, kept, None)


async def test_only_notices_of_ended_runs_are_read_and_a_message_needs_a_run_that_lives() -> None:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        background = StoredBackground(app._stored.checkpoints)
        await app.submit("a", "go", run_id="r")
        await store.post("r", Mail(mail_id="n", topic=f"{ENDED_TOPIC}c", body=b"{}"))
        assert await background.send("r", "hello", "m1")
        assert [mail.mail_id for mail in await background.read_notices("r")] == ["n"]
        mail = (await store.load("r", after=END)).mail
        assert [(each.mail_id, each.topic) for each in mail] == [("n", f"{ENDED_TOPIC}c"), ("m1", MESSAGE_TOPIC)]
        await background.cancel("r")
        assert (await get_record(store, "r")).status is RunStatus.CANCELLED
        await background.cancel("r")
        await background.cancel("unknown")
        assert not await background.send("r", "too late", "m2")
        assert not await background.send("unknown", "hello", "m3")


async def test_a_child_in_the_background_outlives_a_parent_that_ended_or_is_gone() -> None:
    store = MemoryStore()
    async with App([Agent(name="a", model=ScriptedModel("done"))], store, worker=False) as app:
        background = StoredBackground(app._stored.checkpoints)
        for parent in ("lives", "ended"):
            await app.submit("a", "go", run_id=parent)
        await leave(store, "ended", RunStatus.FAILED)
        found = {}
        for name, info in {
            "alone": make_child("c1", None),
            "of one that lives": make_child("c2", "lives"),
            "of one that ended": make_child("c3", "ended"),
            "of one that is gone": make_child("c4", "gone"),
            "awaited": make_child("c5", "ended", background=False),
        }.items():
            await background.submit(info)
            found[name] = await has_outlived_parent(store, await get_record(store, info.run_id))
    assert [name for name, outlived in found.items() if outlived] == ["of one that ended", "of one that is gone"]
