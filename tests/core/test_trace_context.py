"""The trace of a caller outside the process: from the headers of an HTTP request, and from the environment."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.batteries.test_telemetry import Collector, get_id, get_parent, get_trace, make_agent
from tests.cli.shell import Shell

from holdfast import App
from holdfast.core.trace_context import continue_trace, get_trace_context
from holdfast.web.api import make_api
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.server import serve_locally

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
TRACEPARENT = f"00-{TRACE:032x}-{SPAN:016x}-01"

#: An App whose spans are written to a file.
TRACED_APP = """
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from holdfast import Agent, App, Reply
from holdfast.batteries.telemetry import OpenTelemetry

async def model(messages, tools):
    return Reply(text="done")

provider = TracerProvider()
spans = open("spans.jsonl", "a")
exporter = ConsoleSpanExporter(out=spans, formatter=lambda span: span.to_json(None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
app = App([Agent(name="a", model=model)], "sqlite:runs.db", telemetry=OpenTelemetry(provider.get_tracer("test")))
"""


@asynccontextmanager
async def serve(app: App, site: ASGIApp | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        app,
        serve_locally(site or make_api(app, authorize=lambda request: LOCAL_PRINCIPAL), 0) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        yield client


async def post_run(client: httpx.AsyncClient, **headers: str) -> str:
    response = await client.post("/runs", json={"agent": "a", "input": "hello"}, headers=headers)
    assert response.status_code == 202, response.text
    run_id: str = response.json()["run_id"]
    return run_id


async def test_the_trace_of_a_request_goes_through_submit_to_the_worker() -> None:
    collector = Collector()
    app = App([make_agent("done")], "memory:", telemetry=collector.port)
    async with serve(app) as client:
        await app.result(await post_run(client, traceparent=TRACEPARENT, tracestate="vendor=1"))
    submit, attempt = collector.get("submit a"), collector.get("invoke_agent a")
    assert (get_trace(submit), get_parent(submit)) == (TRACE, SPAN)
    assert (get_trace(attempt), get_parent(attempt)) == (TRACE, get_id(submit))
    assert submit.context is not None
    assert submit.context.trace_state.get("vendor") == "1"


@pytest.mark.parametrize("header", ["", "00-broken", f"00-{0:032x}-{SPAN:016x}-01", f"ff-{TRACE:032x}-{SPAN:016x}-01"])
async def test_a_request_without_a_valid_trace_begins_its_own(header: str) -> None:
    with continue_trace({"traceparent": header}):
        assert not get_trace_context()
    collector = Collector()
    app = App([make_agent("done")], "memory:", telemetry=collector.port)
    async with serve(app) as client:
        await app.result(await post_run(client, **({"traceparent": header} if header else {})))
    submit = collector.get("submit a")
    assert get_parent(submit) is None
    assert get_trace(submit) != TRACE


async def test_the_span_of_the_server_comes_before_the_header() -> None:
    collector = Collector()
    app = App([make_agent("done")], "memory:", telemetry=collector.port)
    api = make_api(app, authorize=lambda request: LOCAL_PRINCIPAL)

    async def traced(scope: Scope, receive: Receive, send: Send) -> None:
        with collector.tracer.start_as_current_span("request"):
            await api(scope, receive, send)

    async with serve(app, traced) as client:
        await app.result(await post_run(client, traceparent=TRACEPARENT))
    assert get_parent(collector.get("submit a")) == get_id(collector.get("request"))


async def test_an_api_without_telemetry_carries_the_trace_to_a_worker_with_it(tmp_path: Path) -> None:
    store, collector = f"sqlite:{tmp_path / 'runs.db'}", Collector()
    async with serve(App([make_agent("done")], store, worker=False)) as client:
        run_id = await post_run(client, traceparent=TRACEPARENT)
    async with App([make_agent("done")], store, telemetry=collector.port) as app:
        await app.result(run_id)
    attempt = collector.get("invoke_agent a")
    assert (get_trace(attempt), get_parent(attempt)) == (TRACE, SPAN)


async def test_a_run_that_is_executed_here_is_below_the_caller() -> None:
    collector = Collector()
    async with App([make_agent("done", "done")], "memory:", telemetry=collector.port) as app:
        with continue_trace({"traceparent": TRACEPARENT}):
            await app.run("a", "hello")
        await app.run("a", "hello")
    assert [get_parent(span) for span in collector.find("invoke_agent a")] == [SPAN, None]
    assert not get_trace_context()


def test_commands_continue_the_trace_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "traced.py").write_text(TRACED_APP)
    shell = Shell(tmp_path)
    for command in (
        ["submit", "a", "hello", "--run-id", "submitted"],
        ["worker", "traced:app", "--max-runs", "1"],
        ["run", "traced:app", "hello", "--run-id", "direct", "--store", "sqlite:other.db"],
    ):
        done = shell.run(*command, **({"TRACEPARENT": TRACEPARENT} if command[0] != "worker" else {}))
        assert done.returncode == 0, done.stderr
    for run_id in ("submitted", "direct"):
        assert _find_attempt(tmp_path, run_id) == (f"0x{TRACE:032x}", f"0x{SPAN:016x}")


def _find_attempt(folder: Path, run_id: str) -> tuple[str, str]:
    """Return the trace and the parent of the only attempt of the run."""
    spans = [json.loads(line) for line in (folder / "spans.jsonl").read_text().splitlines()]
    [attempt] = [
        span for span in spans if span["name"] == "invoke_agent a" and span["attributes"]["holdfast.run_id"] == run_id
    ]
    return attempt["context"]["trace_id"], attempt["parent_id"]
