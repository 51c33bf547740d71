"""Traces and metrics of runs with the OpenTelemetry SDK, exported to memory."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Phase, Reply, Retry, Usage, current_call, tool
from holdfast.batteries.telemetry import OpenTelemetry
from holdfast.core import Ports
from holdfast.core.run.waiting import Approve, RunWaiting
from holdfast.core.trace_context import continue_trace
from holdfast.errors import ModelUnavailable
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock
from holdfast.workflows import workflow

SECRET = "hunter2"


class Collector:
    """A telemetry port, and what it has exported."""

    def __init__(self, **options: Any) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")
        meter = MeterProvider([self._reader]).get_meter("test")
        self.port = OpenTelemetry(self.tracer, meter, **options)

    def find(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def get(self, name: str) -> ReadableSpan:
        [span] = self.find(name)
        return span

    @property
    def names(self) -> list[str]:
        return [span.name for span in self._exporter.get_finished_spans()]

    @property
    def text(self) -> str:
        return "\n".join(span.to_json() for span in self._exporter.get_finished_spans())

    def read_points(self, name: str) -> list[Any]:
        """The points of one metric."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data is not None else ())
            for metric in resource.scope_metrics[0].metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def read_metrics(self) -> dict[str, Any]:
        """The sum or count of each metric, over its attributes."""
        data, found = self._reader.get_metrics_data(), dict[str, Any]()
        for resource in data.resource_metrics if data is not None else ():
            for metric in resource.scope_metrics[0].metrics:
                points: Sequence[Any] = metric.data.data_points
                found[metric.name] = sum(point.sum if hasattr(point, "sum") else point.value for point in points)
        return found


def get_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def get_trace(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def get_parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


@pytest.fixture
def collector() -> Collector:
    return Collector()


@tool(effect="pure")
async def look(password: str) -> str:
    return f"saw {SECRET}"


def make_agent(*turns: Any, tools: Sequence[Any] = (look,), name: str = "a") -> Agent:
    return Agent(name=name, model=ScriptedModel(*turns), tools=list(tools), model_tier="smart")


CHAT = "chat ScriptedModel"
LOOK = tool_reply(call("c1", "look", password=SECRET), usage=Usage(input_tokens=10, output_tokens=2, cost_usd=0.5))


async def test_a_run_is_one_trace_below_the_span_of_its_caller(collector: Collector) -> None:
    async with App([make_agent(LOOK, "done")], "memory:", telemetry=collector.port) as app:
        with collector.tracer.start_as_current_span("request"):
            await app.run("a", SECRET, run_id="r")
    assert collector.names == [CHAT, "execute_tool look", CHAT, "invoke_agent a", "request"]
    request, attempt = collector.get("request"), collector.get("invoke_agent a")
    assert get_parent(attempt) == get_id(request)
    below = [*collector.find(CHAT), collector.get("execute_tool look")]
    assert {get_parent(span) for span in below} == {get_id(attempt)}
    assert {get_trace(span) for span in below} == {get_trace(request)}
    first = below[0].attributes
    assert first is not None
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (10, 2)
    assert (first["gen_ai.operation.name"], first["gen_ai.request.model"], first["holdfast.cost_usd"]) == (
        "chat",
        "ScriptedModel",
        0.5,
    )
    assert first["holdfast.model_tier"] == "smart"
    whole = attempt.attributes or {}
    assert (whole["gen_ai.usage.input_tokens"], whole["holdfast.cost_usd"], whole["holdfast.end"]) == (10, 0.5, "done")
    assert (below[2].attributes or {})["holdfast.outcome"] == "done"
    assert SECRET not in collector.text


async def test_a_model_call_has_the_name_of_the_model_and_its_provider(collector: Collector) -> None:
    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        return Reply(text="done", model="gpt-5-2026-08-07")

    model.__name__ = "openai:gpt-5"  # as adapters name theirs
    agent = Agent(name="a", model=model, model_tier="smart")
    async with App([agent], "memory:", telemetry=collector.port) as app:
        await app.run("a", "go")
    attributes = collector.get("chat gpt-5").attributes
    assert attributes is not None
    assert (attributes["gen_ai.request.model"], attributes["gen_ai.provider.name"]) == ("gpt-5", "openai")
    assert attributes["gen_ai.response.model"] == "gpt-5-2026-08-07"
    assert attributes["holdfast.step"] == 1
    [point] = collector.read_points("gen_ai.client.operation.duration")
    assert dict(point.attributes) == {
        "gen_ai.agent.name": "a",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.response.model": "gpt-5-2026-08-07",
    }


async def test_the_duration_of_a_failed_model_call_has_the_class_of_its_error() -> None:
    clock = ManualClock()

    async def fail(messages: object) -> Reply:
        await clock.advance(timedelta(seconds=3))
        raise ValueError(SECRET)

    collector = Collector(clock=clock)
    host = SimulatedHost(ports=Ports(observers=(collector.port,)), clock=clock)
    with fails_with(ValueError, match=SECRET):
        await host.executor.run(make_agent(fail), "go")
    [point] = collector.read_points("gen_ai.client.operation.duration")
    assert (point.count, point.sum, point.attributes["error.type"]) == (1, 3.0, "ValueError")
    assert collector.read_points("gen_ai.client.inference.usage.input_tokens") == []


async def test_a_reply_that_does_not_name_its_model_has_no_such_attribute(collector: Collector) -> None:
    async with App([make_agent("done")], "memory:", telemetry=collector.port) as app:
        await app.run("a", "go")
    assert "gen_ai.response.model" not in (collector.get(CHAT).attributes or {})


async def test_the_trace_goes_from_submit_to_the_worker(durable_store_url: str, collector: Collector) -> None:
    agent = make_agent("done")
    async with App([agent], durable_store_url, telemetry=collector.port, worker=False) as app:
        with collector.tracer.start_as_current_span("request"):
            run_id = await app.submit("a", "go")
    other = Collector()
    with other.tracer.start_as_current_span("of the worker"):
        async with App([agent], durable_store_url, telemetry=other.port) as app:
            await app.result(run_id)
    submitted, attempt = collector.get("submit a"), other.get("invoke_agent a")
    assert get_parent(submitted) == get_id(collector.get("request"))
    assert get_parent(attempt) == get_id(submitted)
    assert get_trace(attempt) == get_trace(submitted)


async def test_a_resumed_run_links_to_its_previous_attempt_in_the_same_trace(collector: Collector) -> None:
    store, reached = MemoryStore(), asyncio.Event()

    async def hang(messages: object) -> Reply:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    ports = Ports(observers=(collector.port,))
    one, two = SimulatedHost(store, ports=ports), SimulatedHost(store, ports=ports)
    task = asyncio.create_task(one.executor.run(make_agent(LOOK, hang), "go", run_id="r", on_cancel="cancel"))
    await reached.wait()
    await one.crash()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await two.resume(make_agent(LOOK, "done"), "r")
    earlier, later = collector.find("invoke_agent a")
    assert [link.context.span_id for link in later.links] == [get_id(earlier)]
    assert get_trace(later) == get_trace(earlier)
    assert len(collector.find("execute_tool look")) == 1


async def test_a_child_run_is_below_the_call_that_started_it(collector: Collector) -> None:
    child = make_agent("helped", name="child")

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "help")).output)

    parent = make_agent(tool_reply(call("c1", "delegate")), "done", tools=[delegate], name="parent")
    async with App([parent], "memory:", telemetry=collector.port) as app:
        await app.run("parent", "go", run_id="above")
    inner = collector.get("invoke_agent child")
    assert inner.attributes is not None
    assert inner.attributes["holdfast.parent_run_id"] == "above"
    assert "gen_ai.conversation.id" not in inner.attributes
    assert "holdfast.parent_run_id" not in (collector.get("invoke_agent parent").attributes or {})
    assert get_parent(inner) == get_id(collector.get("execute_tool delegate"))
    assert get_trace(inner) == get_trace(collector.get("invoke_agent parent"))


async def test_spans_of_a_tool_are_below_its_call(collector: Collector) -> None:
    @tool(effect="pure")
    async def fetch() -> str:
        with collector.tracer.start_as_current_span("GET"):
            return "ok"

    calls = tool_reply(call("c1", "fetch"), call("c2", "fetch"))
    async with App([make_agent(calls, "done", tools=[fetch])], "memory:", telemetry=collector.port) as app:
        await app.run("a", "go")
    assert {get_parent(span) for span in collector.find("GET")} == {
        get_id(span) for span in collector.find("execute_tool fetch")
    }
    assert len(collector.find("GET")) == 2


async def test_retries_are_spans(collector: Collector) -> None:
    clock = ManualClock()

    @tool(effect="pure", retry=Retry(max_tries=2, jitter=0))
    async def late() -> str:
        raise TimeoutError("late")

    failing = [ModelUnavailable("away", timedelta(seconds=7))]

    async def model(messages: Any, tools: Any) -> Reply:
        if failing:
            raise failing.pop()
        return await script(messages, tools)

    script = ScriptedModel(tool_reply(call("1", "late")), "done")
    collector = Collector(clock=clock)
    host = SimulatedHost(ports=Ports(observers=(collector.port,)), clock=clock)
    run = asyncio.create_task(host.executor.run(Agent(name="a", model=model, tools=[late]), "go"))
    await clock.advance(timedelta(seconds=8))
    await run
    failed, *replied = collector.find("chat model")
    assert (failed.status.is_ok, len(replied)) == (False, 2)
    pause, again = collector.get("retry model"), collector.get("retry late")
    assert pause.end_time is not None
    assert pause.start_time is not None
    assert pause.end_time - pause.start_time == 7_000_000_000
    assert get_parent(pause) == get_id(collector.get("invoke_agent a"))
    assert get_parent(again) == get_id(collector.get("execute_tool late"))


async def test_spans_of_a_model_are_below_its_call_which_ends_with_the_reply() -> None:
    clock = ManualClock()
    collector = Collector(clock=clock)

    async def model(messages: Any, tools: Any) -> Reply:
        with collector.tracer.start_as_current_span("POST"):
            return Reply(text="done")

    class Slow(MemoryStore):
        """A store whose writes take a second each."""

        async def append(self, *arguments: Any, **options: Any) -> Any:
            await clock.advance(timedelta(seconds=1))
            return await super().append(*arguments, **options)

    agent = Agent(name="a", model=model)
    async with App([agent], Slow(clock=clock), telemetry=collector.port, worker=False, clock=clock) as app:
        await app.run("a", "go")
    chat = collector.get("chat model")
    assert get_parent(collector.get("POST")) == get_id(chat)
    assert chat.start_time == chat.end_time, "the write comes after the reply"


async def test_the_span_of_the_caller_in_this_process_is_nearer_than_that_of_its_request(collector: Collector) -> None:
    header = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with App([make_agent("one")], "memory:", telemetry=collector.port) as app:
        with continue_trace({"traceparent": header}):
            await app.run("a", "go", run_id="outside")
            with collector.tracer.start_as_current_span("request"):
                await app.run("a", "go", run_id="inside")
    outside, inside = collector.find("invoke_agent a")
    assert get_parent(outside) == 0xB7AD6B7169203331
    assert get_parent(inside) == get_id(collector.get("request"))


async def test_the_time_between_a_failure_and_its_resume_is_no_wait(collector: Collector) -> None:
    failing = [ValueError("broken")]

    async def model(messages: Any, tools: Any) -> Reply:
        if failing:
            raise failing.pop()
        return Reply(text="done")

    async with App([Agent(name="a", model=model)], "memory:", telemetry=collector.port, worker=False) as app:
        with fails_with(ValueError, match="broken"):
            await app.run("a", "go", run_id="r")
        await app.resume("r")
    assert len(collector.find("invoke_agent a")) == 2
    assert collector.find("wait") == []


async def test_a_call_in_doubt_is_an_event_of_the_attempt(collector: Collector) -> None:
    store, started = MemoryStore(), asyncio.Event()

    @tool(in_doubt="report")
    async def pay() -> str:
        started.set()
        await asyncio.Event().wait()
        return "paid"

    agent = make_agent(tool_reply(call("c1", "pay")), "done", tools=[pay])
    one = SimulatedHost(store)
    task = asyncio.create_task(one.executor.run(agent, "go", run_id="r", on_cancel="cancel"))
    await started.wait()
    await one.crash()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await SimulatedHost(store, ports=Ports(observers=(collector.port,))).resume(agent, "r")
    [event] = collector.get("invoke_agent a").events
    assert (event.name, dict(event.attributes or {})) == ("in doubt", {"tool": "pay", "call_id": "c1"})


async def test_a_wait_is_a_span_from_the_attempt_before_it_to_the_one_after() -> None:
    @tool(effect="once", approval=True)
    async def pay() -> str:
        return "paid"

    agent = make_agent(tool_reply(call("c1", "pay")), "done", tools=[pay])
    clock = ManualClock()
    collector = Collector(clock=clock)
    async with App([agent], MemoryStore(clock=clock), telemetry=collector.port, worker=False, clock=clock) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go", run_id="r")
        await clock.advance(timedelta(seconds=5))
        [pending] = await app.pending()
        await app.answer(pending.run_id, pending.call_id, Approve())
        await app.recover()
    wait = collector.get("wait")
    assert wait.end_time is not None
    assert wait.start_time is not None
    assert wait.end_time - wait.start_time == 5 * 10**9
    attempts = collector.find("invoke_agent a")
    assert {get_trace(span) for span in attempts} == {get_trace(wait)}
    spans = [*attempts, *collector.find(CHAT)]
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET] * 4, "a wait is no error"


async def test_a_model_call_ends_with_its_step(collector: Collector) -> None:
    agent = Agent(name="a", model=ScriptedModel("draft", "final"), phases=[Phase(name="write"), Phase(name="edit")])
    async with App([agent], "memory:", telemetry=collector.port) as app:
        await app.run("a", "go")
    assert collector.names == [CHAT, CHAT, "invoke_agent a"]


async def test_each_turn_of_a_conversation_has_a_trace_of_its_own(collector: Collector) -> None:
    async with App([make_agent("hello", "again")], "memory:", telemetry=collector.port) as app:
        conversation = app.conversation("a", "ann")
        await conversation.send("hi")
        await conversation.send("hi again")
    first, second = collector.find("invoke_agent a")
    assert get_trace(first) != get_trace(second)
    assert {(span.attributes or {}).get("gen_ai.conversation.id") for span in (first, second)} == {conversation.run_id}
    assert [link.context.span_id for link in second.links] == [get_id(first)]


async def test_only_a_call_that_failed_is_marked(collector: Collector) -> None:
    @tool(effect="pure")
    async def read(name: str) -> str:
        if name == "gone":
            raise LookupError("no such file")
        return "text"

    @tool(approval=True)
    async def send() -> None: ...

    turn = tool_reply(call("1", "read", name="gone"), call("2", "read", name="here"), call("3", "send"))
    async with App([make_agent(turn, tools=[read, send])], "memory:", telemetry=collector.port) as app:
        with pytest.raises(RunWaiting):
            await app.run("a", "go")
    spans = {(span.attributes or {})["gen_ai.tool.call.id"]: span for span in collector.find("execute_tool read")}
    assert spans["1"].status.status_code is StatusCode.ERROR
    assert (spans["1"].attributes or {})["error.type"] == "error"
    for span in (spans["2"], *collector.find("execute_tool send")):
        assert span.status.status_code is StatusCode.UNSET
        assert "error.type" not in (span.attributes or {})


async def test_spans_of_a_workflow_are_below_its_attempt(collector: Collector) -> None:
    @workflow
    async def flow() -> str:
        await look(password=SECRET)
        with collector.tracer.start_as_current_span("own"):
            return "done"

    async with App([flow], "memory:", telemetry=collector.port) as app:
        await app.run(flow)
    assert get_parent(collector.get("own")) == get_id(collector.get("invoke_agent flow"))


async def test_a_failed_run_is_marked_with_the_class_of_its_error(collector: Collector) -> None:
    async with App([make_agent(ValueError(SECRET))], "memory:", telemetry=collector.port) as app:
        with fails_with(ValueError, match=SECRET):
            await app.run("a", "go")
    attempt = collector.get("invoke_agent a")
    assert attempt.status.description == "ValueError"
    for span in (attempt, collector.get(CHAT)):
        assert (span.attributes or {})["error.type"] == "ValueError"
    assert (attempt.attributes or {})["holdfast.end"] == "failed"
    assert SECRET not in collector.text


async def test_metrics_are_instruments(collector: Collector) -> None:
    async with App([make_agent(LOOK, "done")], "memory:", telemetry=collector.port) as app:
        await app.run("a", "go")
    found = collector.read_metrics()
    assert (found["holdfast.attempts"], found["holdfast.cost"], found["gen_ai.client.token.usage"]) == (1, 0.5, 12)
    usage = "gen_ai.client.inference.usage"
    assert (found[f"{usage}.input_tokens"], found[f"{usage}.output_tokens"]) == (10, 2)
    assert found[f"{usage}.reasoning.output_tokens"] == 0
    assert {"holdfast.step.duration", "holdfast.save.duration", "holdfast.retries", "holdfast.strikes"} <= set(found)


async def test_the_runs_and_the_queue_of_the_store_are_gauges() -> None:
    clock = ManualClock()
    store, collector = MemoryStore(clock=clock), Collector(clock=clock)
    async with App([make_agent("done")], store, telemetry=collector.port, worker=False, clock=clock) as app:
        await app.submit("a", "go")
        await clock.advance(timedelta(seconds=35))
        found = collector.read_metrics()
        assert (found["holdfast.runs"], found["holdfast.queue.depth"]) == (1, 1)
        assert found["holdfast.queue.age"] > 0


async def test_without_an_sdk_nothing_is_stored_with_the_run() -> None:
    async with App([make_agent(LOOK, "done")], "memory:", telemetry=OpenTelemetry()) as app:
        run_id = await app.submit("a", "go")
        await app.result(run_id)
        assert app.store is not None
        stored = await app.store.load(run_id)
    assert b"otel" not in stored.record.progress
