"""The metrics as text for Prometheus, read by its own parser."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Usage, tool
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.checkpoint.workers import RunCount, WorkerIdentity, this_process
from holdfast.core.metrics import RunMetrics
from holdfast.core.redaction import Redactor
from holdfast.runtime.status_server import render_metrics
from holdfast.stores.from_url import store_from_url
from holdfast.stores.redacting import RedactingStore
from holdfast.testing.store_processes.store_under_test import make_run
from holdfast.web.api import make_api
from holdfast.web.auth import Principal

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def parse(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_names_of_agents_are_escaped() -> None:
    metrics, name = RunMetrics(), 'a "quoted"\nname\\n'
    metrics.get(name).strikes += 3
    counts = [RunCount(agent_name=name, status=RunStatus.QUEUED, count=2, due=1, oldest=NOW - timedelta(seconds=90))]
    found = parse(render_metrics(metrics, counts, NOW))
    assert found[key("holdfast_strikes_total", agent=name)] == 3
    assert found[key("holdfast_runs", agent=name, status="queued")] == 2
    assert found[key("holdfast_queue_depth", agent=name)] == 1
    assert found[key("holdfast_queue_age_seconds", agent=name)] == 90


def test_the_buckets_of_a_histogram_count_up() -> None:
    metrics = RunMetrics()
    for seconds in (0.0005, 0.02, 0.02, 1000.0):
        metrics.get("a").steps.add(seconds)
    found = parse(render_metrics(metrics, (), NOW))
    buckets = [found[key("holdfast_step_seconds_bucket", agent="a", le=le)] for le in ("0.001", "0.025", "+Inf")]
    assert (buckets, found[key("holdfast_step_seconds_count", agent="a")]) == ([1, 3, 4], 4)
    assert found[key("holdfast_step_seconds_sum", agent="a")] == pytest.approx(1000.0405)


async def test_every_store_counts_its_runs_by_agent_and_status(store: RunStore) -> None:
    workers = [WorkerIdentity(worker_id=name, process=this_process()) for name in ("alive", "dead")]
    for worker in workers:
        await store.register_worker(worker)
        await store.create(make_run(f"held-{worker.worker_id}"), worker_id=worker.worker_id)
    await store.create(make_run("queued"))
    await store.deregister_worker("dead")
    for each in (store, RedactingStore(store, Redactor())):
        counts = {(count.agent_name, count.status): count for count in (await each.read_fleet()).counts}
        assert {name: count.count for name, count in counts.items()} == {
            ("agent", RunStatus.QUEUED): 1,
            ("agent", RunStatus.RUNNING): 1,
            ("agent", RunStatus.INTERRUPTED): 1,
        }
        assert (counts["agent", RunStatus.QUEUED].due, counts["agent", RunStatus.RUNNING].due) == (1, 0)
        record = await get_record(store, "queued")
        assert counts["agent", RunStatus.QUEUED].oldest == record.updated_at


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[RunStore]:
    made = store_from_url(store_url)
    await made.open()
    yield made
    await made.close()


@tool(effect="pure")
async def look() -> str:
    return "seen"


USERS = {
    "ops": Principal(caller_id="", sees_all=True),
    "ann": Principal(caller_id="ann"),
    "blind": Principal(caller_id="", sees_all=True, scopes={"start"}),
}


def authorize(request: Request) -> Principal | None:
    return USERS.get(request.headers.get("authorization", ""))


async def test_the_api_serves_metrics_to_those_who_see_all_runs() -> None:
    usage = Usage(input_tokens=10, output_tokens=2, cost_usd=0.5)
    agent = Agent(name="a", model=ScriptedModel(tool_reply(call("c1", "look"), usage=usage), "done"), tools=[look])
    async with App([agent], "memory:") as app:
        await app.run("a", "go", run_id="secret-run", caller_id="secret-caller")
        transport = httpx.ASGITransport(make_api(app, authorize=authorize))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            responses = {
                user: await client.get("/metrics", headers={"authorization": user})
                for user in ("ops", "ann", "blind", "nobody")
            }
    assert {user: response.status_code for user, response in responses.items()} == {
        "ops": 200,
        "ann": 403,
        "blind": 403,
        "nobody": 401,
    }
    text = responses["ops"].text
    assert responses["ops"].headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = parse(text)
    assert found[key("holdfast_attempts_total", agent="a", end="done")] == 1
    assert found[key("holdfast_runs", agent="a", status="done")] == 1
    assert found[key("holdfast_tokens_total", agent="a", type="input")] == 10
    assert found[key("holdfast_cost_usd_total", agent="a")] == 0.5
    assert found[key("holdfast_step_seconds_count", agent="a")] == 2
    assert found[key("holdfast_save_seconds_count", agent="a")] > 0
    assert "secret" not in text
