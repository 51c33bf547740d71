"""What every run has, a workflow run has: labels, limits, budgets, audit rows, spans, events; phases and fan-outs."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from tests.batteries.test_telemetry import Collector
from tests.failed_runs import fails_with

from holdfast import Agent, App, Phase, RunWaiting, WorkerSettings, current_call, tool
from holdfast.batteries.audit import Audit
from holdfast.batteries.budget import Budget, Limit
from holdfast.config import ConcurrencyLimit
from holdfast.core.agents.tool_context import ToolContext
from holdfast.events import StepFinished
from holdfast.fanout import Fanout
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import saga, wait_for, workflow

KEYS: list[str] = []


async def pay_back(call: ToolContext, receipt: str) -> None:
    pass


@tool(undo=pay_back)
async def pay(euro: int, password: str = "") -> str:
    KEYS.append(current_call().idempotency_key)
    return f"receipt {euro}"


@tool(effect="pure")
async def look(city: str) -> str:
    return f"{city}?"


@workflow
async def shop(city: str) -> str:
    await asyncio.gather(look(city), look(f"{city} 2"))
    try:
        async with saga():
            await pay(7, password="hunter2")
            raise ValueError("no")
    except ValueError:
        pass
    return f"visited {city}"


async def test_a_workflow_run_has_labels_audit_rows_spans_events_and_usage() -> None:
    audit, collector = Audit(), Collector()
    async with App([shop], MemoryStore(), audit=audit, telemetry=collector.port) as app:
        result = await app.run(shop, "Rome", run_id="r", labels={"team": "a"}, caller_id="ann")
        assert [run.run_id for run in (await app.list(labels={"team": "a"})).runs] == ["r"]
        assert [run.run_id for run in (await app.list(caller="ann")).runs] == ["r"]
        rows = await audit.query()
        events = [event async for event in app.events("r")]
    assert (result.steps, result.usage.tool_calls) == (5, 5)
    # Audit: each call with its effect and arguments, without secrets; each is a step.
    assert [(row.kind, row.status) for row in rows if row.kind in ("start", "end")] == [
        ("start", "begun"),
        ("end", "done"),
    ]
    tools = {row.name: row for row in rows if row.kind == "tool"}
    assert set(tools) == {"look", "pay", "saga", "undo pay"}
    assert (tools["pay"].effect, tools["look"].effect, tools["undo pay"].effect) == ("once", "pure", "idempotent")
    assert tools["pay"].arguments["euro"] == 7
    assert "hunter2" not in str(rows)
    assert Counter(row.kind for row in rows)["step"] == 5
    assert {row.caller_id for row in rows} == {"ann"}
    # Spans: one of the attempt, and one below it for each call.
    spans = Counter(collector.names)
    assert [spans[f"execute_tool {name}"] for name in ("look", "pay", "saga", "undo pay")] == [2, 1, 1, 1]
    attempt = collector.get("invoke_agent shop")
    context = attempt.get_span_context()
    assert context is not None
    paid = collector.get("execute_tool pay")
    assert paid.parent is not None
    assert paid.parent.span_id == context.span_id
    # Events: a watcher sees each call and its result.
    kinds = Counter(type(event).__name__ for event in events)
    assert (kinds["ToolCalled"], kinds["ToolReturned"]) == (5, 5)
    assert max(event.step for event in events if isinstance(event, StepFinished)) == 5


async def test_a_budget_holds_for_workflows() -> None:
    budget = Budget(Limit(runs=1, window=timedelta(hours=1)))
    async with App([shop], MemoryStore(), budget=budget) as app:
        await app.run(shop, "Rome")
        with pytest.raises(RunWaiting, match="waits for its budget"):
            await app.run(shop, "Oslo")


async def test_a_concurrency_limit_holds_for_workflows() -> None:
    active = most = 0

    @tool(effect="idempotent")
    async def work(number: int) -> int:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await asyncio.sleep(0.01)
        active -= 1
        return number

    @workflow
    async def flow(number: int) -> int:
        return int(await work(number))

    settings = WorkerSettings(concurrency_limits=[ConcurrencyLimit(agent="flow", max_runs=2)])
    async with App([flow], MemoryStore(), worker=settings) as app:
        run_ids = [await app.submit(flow, inputs={"number": number}) for number in range(6)]
        assert [(await app.result(run_id)).output for run_id in run_ids] == list(range(6))
    assert most == 2


async def test_a_listener_sees_a_failed_workflow() -> None:
    class Listener:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        async def on_event(self, info: Any, event: Any) -> None:
            self.seen.append(type(event).__name__)

        async def on_output(self, info: Any, output: Any) -> None:
            self.seen.append(output)

        async def on_error(self, info: Any, error: BaseException) -> None:
            self.seen.append(str(error))

    @workflow
    async def fail() -> None:
        await look("Rome")
        raise ValueError("no")

    listener = Listener()
    async with App([fail], MemoryStore(), listener=listener) as app:
        with fails_with(ValueError, match="no"):
            await app.run(fail)
    assert [each for each in listener.seen if each in ("StepStarted", "ToolCalled", "ToolReturned", "no")] == [
        "StepStarted",
        "ToolCalled",
        "ToolReturned",
        "no",
    ]


async def test_the_phases_of_an_agent_are_calls_of_a_workflow() -> None:
    @workflow
    async def charge(text: str) -> str:
        await pay(1)
        if text.endswith("!"):
            await wait_for("go")
        return f"<{text}>"

    KEYS.clear()
    agent = Agent(name="phased", loop=charge.loop, phases=[Phase(name="a"), Phase(name="b", prompt="$a!")])
    async with App([agent], MemoryStore()) as app:
        run_id = await app.submit(agent, "tea")
        await app.signal(run_id, "go", None)
        result = await app.result(run_id)
        assert result.output == "<<tea>!>"
        assert [phase.output for phase in result.phases] == ["<tea>", "<<tea>!>"]
    assert len(KEYS) == len(set(KEYS)) == 2, "equal calls of two phases are two payments"


async def test_workflows_are_the_targets_of_a_fan_out() -> None:
    @workflow
    async def other(prompt: str) -> str:
        return f"other {prompt}"

    responses = await Fanout("Rome", [shop, other], store="memory:").run()
    assert {each.model_id: (each.text, each.error) for each in responses} == {
        "shop": ("visited Rome", ""),
        "other": ("other Rome", ""),
    }
