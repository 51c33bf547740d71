"""The store knows which agents the live workers take runs of."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime
from typing import Any

import apsw
import psycopg
import pytest
from tests.probe_store import ProbeStore

from holdfast import Agent, App, Reply, WorkerSettings
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import count_live_workers, this_process
from holdfast.core.agents.agent import AgentSource
from holdfast.ids import make_id
from holdfast.runtime.operations.run_client import RunClient
from holdfast.runtime.reading.activity import read_activity
from holdfast.stores.from_url import store_from_url
from holdfast.stores.memory import MemoryStore


async def model(messages: Any, tools: Any) -> Reply:
    return Reply(text="done")


def make_agent(name: str) -> Agent:
    return Agent(name=name, model=model)


async def read_counts(store: RunStore) -> Mapping[str, int] | None:
    return count_live_workers(await store.list_workers())


async def wait_for_counts(store: RunStore, expected: Mapping[str, int]) -> None:
    async with asyncio.timeout(60):
        while (found := await read_counts(store)) != expected:  # noqa: ASYNC110 - no event of the store says so
            await asyncio.sleep(0.01)
    assert found == expected


async def test_an_app_that_takes_runs_is_listed_with_its_agents_and_other_processes_with_none(store_url: str) -> None:
    store = store_from_url(store_url)
    agents = [make_agent("writer"), make_agent("critic")]
    async with App(agents, store):
        assert await read_counts(store) == {"writer": 1, "critic": 1}
        [worker] = await store.list_workers()
        assert worker.worker.agents == ("writer", "critic")
        [shown] = (await read_activity(store, datetime.now(UTC))).workers
        assert (shown.agents, shown.runs, shown.last_write) == (["critic", "writer"], 0, None)
    async with App(agents, store, worker=False) as app:
        assert await read_counts(store) == {}
        run_id = await app.submit("writer", "go")
        await app.recover()
        assert (await app.result(run_id)).output == "done"
        assert [each.worker.agents for each in await store.list_workers()] == [()], "it takes no further runs"
    async with RunClient.open(store) as client:
        run_id = await client.submit("nobody", "go")
        await client.cancel(run_id)
        assert [each.worker.agents for each in await store.list_workers()] == [()]


class Library:
    """A repository whose agents change."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentSource] = {}


async def test_an_agent_that_a_repository_adds_later_is_listed(store_url: str) -> None:
    library = Library()
    async with App([make_agent("writer"), library], store_url) as app:
        assert await read_counts(app.open_store) == {"writer": 1}
        library.agents["critic"] = make_agent("critic")
        await app.submit("writer", "go")  # wakes the worker
        await wait_for_counts(app.open_store, {"writer": 1, "critic": 1})


async def test_a_worker_that_has_taken_all_its_runs_takes_none(store_url: str) -> None:
    async with App([make_agent("writer")], store_url, worker=WorkerSettings(max_runs=1)) as app:
        assert await read_counts(app.open_store) == {"writer": 1}
        await app.result(await app.submit("writer", "go"))
        await wait_for_counts(app.open_store, {})
        assert [each.alive for each in await app.open_store.list_workers()] == [True], "it is still open"


async def test_submit_warns_once_of_an_agent_that_no_live_worker_knows(
    durable_store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = f"agent-{make_id()}"
    async with (
        AsyncExitStack() as opened,
        App([make_agent("writer"), make_agent("critic")], _open_probe(opened, durable_store_url)) as app,
    ):
        await app.result(await app.submit("writer", "go"))
        assert isinstance(app.store, ProbeStore)
        assert "list_workers" not in app.store.calls, "this process takes the run"
        for _ in range(2):
            store = _open_probe(opened, durable_store_url)
            async with App([make_agent(agent), make_agent("critic")], store, worker=False) as submitter:
                for name in (agent, agent, "critic", "critic"):
                    await submitter.submit(name, "go")
                await submitter.conversation(agent, "key").post("go")
            assert _warnings(caplog) == [
                f"no live worker knows agent {agent}: its runs wait until `holdfast worker MODULE:APP` is started with "
                "it; live workers know critic, writer"
            ]
            assert store.calls.count("list_workers") == 2, "once a minute for each agent"


async def test_submit_succeeds_although_the_workers_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(method: str) -> None:
        if method == "list_workers":
            raise StoreUnavailable("the server is away")

    async with RunClient.open(ProbeStore(MemoryStore(), before=fail)) as client:
        run_id = await client.submit(f"agent-{make_id()}", "go")
        assert (await client.get(run_id)).status == "queued"
    assert _warnings(caplog) == []


async def test_fork_warns_of_an_agent_that_no_live_worker_knows(
    durable_store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = make_agent(f"agent-{make_id()}")
    async with App([agent], durable_store_url, worker=False) as app:
        await app.run(agent, "go", run_id="r")
        assert _warnings(caplog) == []
        await app.fork("r", at_step=1)
        [warning] = _warnings(caplog)
    assert f"no live worker knows agent {agent.name}: its runs wait" in warning


async def test_a_worker_of_a_version_that_recorded_no_agents_may_know_any(
    durable_store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with RunClient.open(durable_store_url) as client:
        await register_as_version_1(durable_store_url)
        await client.submit(f"agent-{make_id()}", "go")
        assert await read_counts(client.open_store) is None
        assert [each.worker.agents for each in await client.open_store.list_workers()] == [None]
        await client.open_store.deregister_worker("old")
        assert await read_counts(client.open_store) == {}
    assert _warnings(caplog) == []


async def register_as_version_1(url: str) -> None:
    """Write a row without the column of the agents, as the first version of the schema had it."""
    process = this_process()
    row = ("old", process.host, process.pid, process.started)
    if url.startswith("sqlite:"):
        sql = "INSERT INTO workers (worker_id, host, pid, started, heartbeat_at) VALUES (?, ?, ?, ?, 0)"
        with closing(apsw.Connection(url.removeprefix("sqlite:"))) as file:
            file.execute(sql, row)
        return
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as server:
        await server.execute(
            "insert into holdfast.worker (worker_id, host, pid, started, alive_until, dead_after)"
            " values (%s, %s, %s, %s, now() + interval '1 hour', interval '1 hour')",
            row,
        )


def _open_probe(opened: AsyncExitStack, url: str) -> ProbeStore:
    inner = store_from_url(url)
    opened.push_async_callback(inner.close)
    return ProbeStore(inner)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "knows agent" in record.getMessage()]
