"""A client that executes nothing: it needs the store, and is a worker of it only while it has claims."""

from pathlib import Path

import pytest
from tests.probe_store import ProbeStore
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, RunWaiting, ask_person
from holdfast.checkpoint.errors import RunNotClaimable, StoreClosed
from holdfast.core.errors import DefinitionError, RunCancelled
from holdfast.runtime.operations.bulk_actions import BULK_ACTIONS
from holdfast.runtime.operations.run_client import RunClient
from holdfast.stores.memory import MemoryStore


async def test_only_an_operation_that_claims_a_run_makes_the_client_a_worker() -> None:
    store = ProbeStore(MemoryStore())
    async with RunClient.open(store) as client:
        await client.submit("writer", "go", run_id="r", caller_id="me")
        await client.send("r", "and quickly")
        await client.pick("r", "r")
        assert [run.run_id for run in (await client.list(caller="me")).runs] == ["r"]
        assert (await client.get("r")).status == "queued"
        assert (await client.get_pick("r")) is not None
        assert await client.pending() == []
        assert "register_worker" not in store.calls
        await client.cancel("r")
        with pytest.raises(RunCancelled):
            await client.result("r")
        await client.requeue("r")
        assert (await client.get("r")).status == "interrupted"
    assert store.calls.count("register_worker") == store.calls.count("deregister_worker") == 1


@pytest.mark.parametrize("claims_before", [True, False])
async def test_a_closed_client_claims_nothing_and_opens_nothing(claims_before: bool) -> None:
    store = ProbeStore(MemoryStore())
    async with RunClient.open(store) as client:
        await client.submit("writer", "go", run_id="r")
        await client.submit("writer", "go", run_id="other")
        if claims_before:
            await client.cancel("other")
    with pytest.raises(StoreClosed):
        await client.cancel("r")
    with pytest.raises(StoreClosed):
        await client.result("r")
    assert store.calls.count("open") == 1
    assert store.calls.count("register_worker") == store.calls.count("deregister_worker") == int(claims_before)


async def test_a_conversation_is_answered_by_another_process_with_the_agent(tmp_path: Path) -> None:
    url, agent = f"sqlite:{tmp_path / 'runs.db'}", Agent(name="a", model=ScriptedModel("hello"))
    async with App([agent], url), RunClient.open(url, {"a": agent}) as client:
        chat = client.conversation("a", "k")
        turn = await chat.send("hi")
        assert turn.output == "hello"
        fork = await chat.fork(1, edited="hi again")
        assert (await fork.result(turn.turn_id)).prompt == "hi again"
        assert len((await client.conversations()).runs) == 2
        await chat.erase()
        assert len((await client.conversations()).runs) == 1


async def test_a_run_that_waits_for_a_person_is_not_requeued() -> None:
    model = ScriptedModel(tool_reply(call("c", "ask_person", question="?")))
    async with App([Agent(name="a", model=model, tools=[ask_person])], MemoryStore(), worker=False) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        with pytest.raises(RunNotClaimable, match="waiting"):
            await app.requeue("r")
        assert (await app.get("r")).status == "waiting"


def test_actions_that_cannot_be_taken_back_are_marked() -> None:
    assert {name for name, action in BULK_ACTIONS.items() if action.is_destructive} == {"cancel", "remove"}


async def test_a_client_that_knows_its_agents_submits_no_others() -> None:
    async with RunClient.open(MemoryStore(), {}) as client:
        with pytest.raises(DefinitionError, match="no agent 'writer'"):
            await client.submit("writer", "go")
