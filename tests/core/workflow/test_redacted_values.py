"""What holdfast itself computes in a workflow survives every redactor; what users and models say does not."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from tests.scripted_model import ScriptedModel, tool_reply
from tests.scripted_model import call as make_call

from holdfast import Agent, App, Reply, RunWaiting, ToolResult, tool
from holdfast.config import CheckpointSettings
from holdfast.core import Message
from holdfast.core.redaction import Redactor
from holdfast.workflows import (
    StepFailed,
    background_tools,
    call,
    first,
    now,
    random,
    saga,
    sleep,
    start,
    uuid4,
    wait_for,
    workflow,
)

#: Matches the digits of ids and times, and the names of kinds and classes.
EAGER = r"\d+|[A-Za-z_]{9,}"


def make_settings(pattern: str = EAGER) -> CheckpointSettings:
    return CheckpointSettings(redact=Redactor(patterns=[pattern]))


async def test_times_random_values_races_and_started_runs_are_the_same_in_every_attempt(durable_store_url: str) -> None:
    seen: list[Any] = []

    async def never() -> None:
        await asyncio.Event().wait()

    @tool
    async def look_up(name: str) -> str:
        return "order 4711471147114711"

    @workflow
    async def flow() -> str:
        made = [await now(), await uuid4(), await random()]
        won = await first(quick_branch_1=look_up("a"), other_branch_2=never())
        started = await start(agent, "go")
        status = await started.status()
        seen.append([*made, won, started, status, await look_up("b")])
        await wait_for("go")
        return str(await started.result())

    agent = Agent(name="helper-12345", model=ScriptedModel("done"))
    for attempt in range(2):
        async with App([flow, agent], durable_store_url, checkpoint=make_settings(r"\d+")) as app:
            if attempt == 0:
                with pytest.raises(RunWaiting):
                    await app.run(flow, run_id="r")
            else:
                await app.signal("r", "go")
                assert (await app.result("r")).output == "done"
                assert app.store is not None
                bodies = b"".join(entry.body for entry in (await app.store.load("r")).entries)
    one, *_, two = seen
    assert one == two
    assert isinstance(one[0], datetime)
    assert isinstance(one[1], UUID)
    assert one[3] == ("quick_branch_1", "order [redacted]")
    assert one[-1] == "order [redacted]"
    assert b"4711471147114711" not in bodies


class Error404Found(Exception):
    """Its name looks like a secret."""


async def test_the_class_and_the_kind_of_an_error_are_the_same_in_every_attempt(durable_store_url: str) -> None:
    seen: list[Any] = []

    @tool(errors=[Error404Found])
    async def fail(name: str) -> None:
        raise Error404Found(f"{name} 4711471147114711")

    @tool
    async def break_down() -> None:
        raise RecursionError("at 4711471147114711")

    @workflow
    async def flow() -> str:
        errors: list[Exception] = []
        for step in (fail("a"), break_down(), wait_for("late", timeout=0)):
            try:
                await step
            except Exception as exc:
                errors.append(exc)
        seen.append([(type(exc), str(exc), getattr(exc, "type_name", None)) for exc in errors])
        await wait_for("go")
        return "done"

    for attempt in range(2):
        async with App([flow], durable_store_url, checkpoint=make_settings()) as app:
            if attempt == 0:
                with pytest.raises(RunWaiting):
                    await app.run(flow, run_id="r")
            else:
                await app.signal("r", "go")
                assert (await app.result("r")).output == "done"
                assert app.store is not None
                bodies = b"".join(entry.body for entry in (await app.store.load("r")).entries)
    one, *_, two = seen
    assert one == two
    assert [kind.__name__ for kind, _, _ in one] == ["Error404Found", "StepFailed", "StepTimeout"]
    assert one[1][2] == "RecursionError"
    assert b"4711471147114711" not in bodies


async def test_a_timer_ends_at_its_time_and_the_failure_of_a_saga_stays_what_it_is(durable_store_url: str) -> None:
    undone: list[str] = []
    seen: list[str] = []

    async def unbook(context: Any, value: str) -> None:
        undone.append(value)

    @tool(undo=unbook)
    async def book(seat: str) -> str:
        return seat

    @workflow
    async def flow() -> str:
        await sleep(0.01)
        try:
            async with saga():
                await book("aisle")
                if not seen:
                    raise OverflowError("too many: 4711471147114711")
        except (OverflowError, StepFailed) as exc:
            seen.append(getattr(exc, "type_name", type(exc).__name__))
        await wait_for("go")
        return "done"

    for attempt in range(2):
        async with App([flow], durable_store_url, checkpoint=make_settings()) as app:
            if attempt == 0:
                with pytest.raises(RunWaiting):
                    await app.run(flow, run_id="r")
            else:
                await app.signal("r", "go")
                assert (await app.result("r")).output == "done"
                assert app.store is not None
                bodies = b"".join(entry.body for entry in (await app.store.load("r")).entries)
    assert undone == ["aisle"]
    assert seen == ["OverflowError", "OverflowError"]
    assert b"4711471147114711" not in bodies


async def test_a_value_that_a_function_of_the_user_returns_is_no_value_of_holdfast() -> None:
    """Also if its step has the name of one."""

    @workflow
    async def flow() -> list[str]:
        return [
            await call(name, lambda: "sk-4711471147114711") for name in ("now", "uuid4", "first", "saga", "workflow")
        ]

    async with App([flow], "memory:", checkpoint=make_settings(r"\d+")) as app:
        await app.run(flow, run_id="r")
        assert app.store is not None
        bodies = b"".join(entry.body for entry in (await app.store.load("r")).entries)
    assert bodies.count(b"sk-[redacted]") == 10
    assert b"4711471147114711" not in bodies


async def wait_until_both_wait(app: App) -> None:
    """Wait until the run and its child wait."""
    async for _ in app.watch(status=["waiting"]):
        if len((await app.list(status="waiting")).runs) == 2:
            return


async def test_a_model_finds_its_background_tasks_by_their_ids_after_a_resume(durable_store_url: str) -> None:
    @workflow
    async def helper(name: str) -> str:
        return f"{await wait_for(name)} sk-4711471147114711"

    read: list[str] = []

    async def wait_for_first(messages: Sequence[Message]) -> Reply:
        started = next(message for message in messages if isinstance(message, ToolResult))
        return tool_reply(make_call("call-1234", "wait_for_tasks", task_ids=[started.content]))

    async def read_result(messages: Sequence[Message]) -> Reply:
        read.append(str(list(messages)))
        return Reply(text="done")

    model = ScriptedModel(
        tool_reply(make_call("call-1233", "start_task", agent="helper", prompt="go")), wait_for_first, read_result
    )
    agent = Agent(name="agent", model=model, tools=background_tools([helper]))
    for attempt in range(2):
        async with App([agent, helper], durable_store_url, checkpoint=make_settings(r"\d+")) as app:
            if attempt == 0:
                await app.submit("agent", "go", run_id="r")
                await wait_until_both_wait(app)
            else:
                [child] = (await app.list(parent="r")).runs
                await app.signal(child.run_id, "go", "ahead")
                assert (await app.result("r", through_waits=True)).output == "done"
                assert f"'task_id': '{child.run_id.rpartition(':')[2]}'" in read[-1]
                assert "ahead sk-" in read[-1]
                assert app.store is not None
                bodies = b"".join(entry.body for entry in (await app.store.load("r")).entries)
    assert b"4711471147114711" not in bodies
