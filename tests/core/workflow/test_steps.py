"""Steps of a workflow: tools that its code calls, each made once and with the same outcome in every attempt."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from tests.core.null_listener import NullListener
from tests.failed_runs import fails_with
from tests.simulated_host import SimulatedHost

from holdfast import App, current_call, tool
from holdfast.checkpoint.record import RunStatus
from holdfast.core.agents.agent import Bounds
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError, RunError, StepsExceeded
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import Event, StepStarted
from holdfast.stores.memory import MemoryStore
from holdfast.workflows import AmbiguousStep, StepFailed, Workflow, call, first, now, random, uuid4, workflow


@dataclass(frozen=True)
class Order:
    id: str
    euro: int = 1
    at: datetime | None = None


async def crash_and_resume(flow: Workflow[Any], crash: Callable[[SimulatedHost], None], **inputs: Any) -> Any:
    """Run the workflow until its host crashes, resume it on another host, and return the output."""
    store = MemoryStore()
    host = SimulatedHost(store)
    crash(host)
    info = RunInfo.create(flow, "", run_id="r", inputs=inputs)
    with contextlib.suppress(RunError):  # a dead host may believe that its run has ended
        await host.executor.start(flow, info)
    assert (await host.get_statuses())["r"] is RunStatus.RUNNING
    return (await SimulatedHost(store).resume(flow, "r")).output


class Dying:
    """A tool that ends its host in a call."""

    def __init__(self) -> None:
        self.host: SimulatedHost | None = None

    def set(self, host: SimulatedHost) -> None:
        self.host = host

    async def __call__(self) -> None:
        if self.host is not None:
            host, self.host = self.host, None
            await host.crash()


async def run(flow: Workflow[Any], **inputs: Any) -> Any:
    async with App([flow], MemoryStore()) as app:
        return (await app.run(flow, inputs=inputs)).output


async def test_a_step_gets_typed_arguments_and_returns_a_typed_result() -> None:
    seen: list[Any] = []

    @tool
    async def charge(order: Order, tip: int = 0) -> Order:
        seen.append(order)
        return Order(order.id, order.euro + tip, order.at)

    @workflow
    async def shop(order: Order) -> Order:
        paid: Order = await charge(order, tip=2)
        return paid

    order = Order("a", 3, datetime.fromisoformat("2026-01-02T03:04:05+00:00"))
    assert await run(shop, order=order) == Order("a", 5, order.at)
    assert seen == [order]


async def test_outside_of_a_run_a_tool_and_a_workflow_are_plain_functions() -> None:
    @tool
    async def double(number: int) -> int:
        return 2 * number

    @tool
    def half(number: int) -> float:
        return number / 2

    @workflow
    async def flow(number: int) -> int:
        return int(await double(number))

    assert await double(2) == 4
    assert half(3) == 1.5
    assert await flow(4) == 8


async def test_a_tool_called_inside_another_tool_is_a_part_of_that_step() -> None:
    @tool
    async def inner(number: int) -> int:
        return number + 1

    @tool
    async def outer(number: int) -> int:
        return 10 * int(await inner(number))

    @workflow
    async def flow() -> int:
        return int(await outer(1))

    async with App([flow], MemoryStore()) as app:
        result = await app.run(flow)
        assert (result.output, result.steps) == (20, 1)


async def test_input_is_checked_before_anything_is_stored() -> None:
    @workflow
    async def flow(order: Order, note: str = "") -> str:
        return note

    async with App([flow], MemoryStore()) as app:
        with pytest.raises(DefinitionError, match="Expected `int`"):
            await app.run(flow, inputs={"order": {"id": "a", "euro": "many"}})
        with pytest.raises(DefinitionError, match="unknown field"):
            await app.submit(flow, inputs={"order": {"id": "a"}, "other": 1})
        with pytest.raises(DefinitionError, match="missing"):
            await app.run("flow")
        assert (await app.list()).runs == ()


async def test_the_prompt_is_the_only_parameter_without_a_value() -> None:
    @workflow
    async def greet(name: str, mark: str = "!") -> str:
        return name + mark

    @workflow
    async def nothing() -> str:
        return "nothing"

    async with App([greet, nothing], MemoryStore()) as app:
        assert (await app.run(greet, "Ann")).output == "Ann!"
        assert (await app.run(greet, "Ann", inputs={"mark": "?"})).output == "Ann?"
        with pytest.raises(DefinitionError, match="has no parameters: give it no prompt"):
            await app.run(nothing, "Ann")


async def test_a_recorded_step_is_not_repeated_and_has_the_same_value() -> None:
    made, values = list[str](), list[Any]()
    dies = Dying()

    @tool
    async def note(text: str) -> tuple[str, int]:
        made.append(text)
        return text, len(made)

    @tool(effect="pure")
    async def stop() -> None:
        await dies()

    @workflow
    async def flow() -> list[Any]:
        first = await note("a")
        values.append((await now(), await uuid4(), await random()))
        await stop()
        return [first, await note("a")]

    assert await crash_and_resume(flow, dies.set) == [["a", 1], ["a", 2]]
    assert made == ["a", "a"]
    assert values[0] == values[1]
    assert [type(value) for value in values[0]] == [datetime, UUID, float]


class Declined(Exception):
    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason, code)
        self.code = code


async def test_an_exception_is_the_same_in_every_attempt() -> None:
    dies, made = Dying(), 0

    @tool(errors=[Declined])
    async def pay(kind: str) -> None:
        nonlocal made
        made += 1
        raise Declined("no money", 402) if kind == "known" else KeyError("other")

    @tool(effect="pure")
    async def stop() -> None:
        await dies()

    seen: list[list[Any]] = []

    @workflow
    async def flow() -> list[Any]:
        caught: list[Any] = []
        for kind in ("known", "other"):
            try:
                await pay(kind)
            except (Declined, StepFailed) as exc:
                caught.append([type(exc).__name__, str(exc), getattr(exc, "code", None)])
        seen.append(caught)
        await stop()
        return caught

    output = await crash_and_resume(flow, dies.set)
    assert seen == [output, output]
    assert output == [
        ["Declined", "('no money', 402)", 402],
        ["StepFailed", "step pay failed: KeyError: 'other'", None],
    ]
    assert made == 2


async def test_an_unstorable_result_is_a_clear_error_in_every_attempt() -> None:
    @tool
    async def make() -> Any:
        return object()

    @tool
    async def lie() -> int:
        return "text"  # type: ignore[return-value]

    @workflow
    async def flow() -> list[str]:
        errors = []
        for step in (make, lie):
            try:
                await step()
            except StepFailed as exc:
                errors.append(exc.message)
        return errors

    unstorable, wrong = await run(flow)
    assert "the result of make cannot be stored" in unstorable
    assert "the result of lie does not fit its annotation" in wrong


async def test_wrong_arguments_and_keys_are_refused_and_nothing_is_recorded() -> None:
    @tool
    async def pay(euro: int) -> int:
        return euro

    @workflow
    async def flow() -> list[str]:
        errors = []
        untyped: Tool = pay
        attempts: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            lambda: untyped("many"),
            lambda: untyped(1, 2),
            lambda: pay.keyed("")(1),
            lambda: pay.keyed(7)(1),  # type: ignore[arg-type]
            lambda: untyped(object()),
        ]
        for attempt in attempts:
            try:
                await attempt()
            except (TypeError, RunError) as exc:
                errors.append(type(exc).__name__)
        return errors

    async with App([flow], MemoryStore()) as app:
        result = await app.run(flow)
        assert result.output == ["TypeError", "TypeError", "DefinitionError", "DefinitionError", "PayloadError"]
        assert result.steps == 0


@pytest.mark.parametrize("style", ["gather", "group", "as_completed"])
async def test_plain_asyncio_runs_steps_side_by_side(style: str) -> None:
    both = asyncio.Barrier(2)

    @tool
    async def meet(number: int) -> int:
        await both.wait()
        return number

    @workflow
    async def flow() -> list[int]:
        if style == "gather":
            return list(await asyncio.gather(meet(1), meet(2)))
        if style == "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(meet(number)) for number in (1, 2)]
            return [task.result() for task in tasks]
        return sorted([await each for each in asyncio.as_completed([meet(1), meet(2)])])

    assert await run(flow) == [1, 2]


async def test_a_failing_branch_cancels_its_siblings_and_later_attempts_agree() -> None:
    dies, started = Dying(), asyncio.Event()

    @tool
    async def fail() -> None:
        await started.wait()
        raise ValueError("no")

    @tool
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    @tool(effect="pure")
    async def stop() -> None:
        await dies()

    @workflow
    async def flow() -> list[str]:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(hang())
                group.create_task(fail())
        except* StepFailed as group_error:
            names = [type(each).__name__ for each in group_error.exceptions]
        await stop()
        return names

    assert "StepFailed" in await crash_and_resume(flow, dies.set)


async def test_equal_calls_of_two_tasks_need_a_key() -> None:
    made = 0

    @tool
    async def pay(euro: int) -> int:
        nonlocal made
        made += 1
        return made

    @workflow
    async def unclear() -> Any:
        return await asyncio.gather(pay(1), pay(1))

    @workflow
    async def unclear_races() -> Any:
        return await asyncio.gather(first(paid=pay(1)), first(paid=pay(1)))

    @workflow
    async def clear() -> Any:
        return await asyncio.gather(pay.keyed("left")(1), pay.keyed("right")(1))

    for flow in (unclear, unclear_races):
        with fails_with(AmbiguousStep):
            await run(flow)
        assert made <= 1
        made = 0
    assert sorted(await run(clear)) == [1, 2]


async def test_an_inline_call_is_recorded() -> None:
    threads: list[str] = []

    def add(left: int, right: int = 1) -> int:
        threads.append(threading.current_thread().name)
        return left + right

    async def make(text: str) -> Order:
        return Order(text)

    @workflow
    async def flow() -> list[Any]:
        order = await call("make", make, "a", effect="pure")
        return [await call("add", add, 1, right=2), order == Order("a")]

    assert await run(flow) == [3, True]
    assert threads == ["holdfast tool"]


async def test_steps_belong_to_their_workflow() -> None:
    kept: list[Any] = []

    @tool
    async def pay() -> int:
        return 1

    @workflow
    async def flow() -> str:
        kept.append(pay())
        errors: list[str] = []

        def elsewhere() -> None:
            try:
                asyncio.run(pay())
            except RunError as exc:
                errors.append(str(exc))

        await asyncio.to_thread(elsewhere)
        return errors[0]

    assert "another event loop or thread" in await run(flow)
    with pytest.raises(RunError, match="which has ended"):
        await kept[0]
    with pytest.raises(RunError, match="only in the function of a workflow"):
        await now()


async def test_a_workflow_takes_no_more_steps_than_its_bound() -> None:
    @tool
    async def pay(number: int) -> str:
        return current_call().call_id

    @workflow(bounds=Bounds(max_steps=3))
    async def flow() -> None:
        for number in range(10):
            try:
                await pay(number)
            except Exception:  # nothing that the code catches
                raise AssertionError from None

    async with App([flow], MemoryStore()) as app:
        with fails_with(StepsExceeded):
            await app.run(flow, run_id="r")
        details = await app.get("r")
        assert (details.status, details.steps) == (RunStatus.FAILED, 3)


def test_what_is_no_function_with_one_result_is_refused() -> None:
    async def generate() -> Any:
        yield 1

    def generate_plainly() -> Any:
        yield 1

    with pytest.raises(DefinitionError, match="is a generator"):
        workflow(generate)
    with pytest.raises(DefinitionError, match="is a generator"):
        workflow(generate_plainly)
    with pytest.raises(DefinitionError, match="annotate"):

        @workflow
        async def untyped(number) -> None:  # type: ignore[no-untyped-def]
            pass


async def test_a_listener_hears_of_each_step_before_it_is_made() -> None:
    heard: list[str] = []

    @tool
    async def note(text: str) -> None:
        heard.append(text)

    class StepListener(NullListener):
        async def on_event(self, info: RunInfo, event: Event) -> None:
            if isinstance(event, StepStarted):
                heard.append(f"step {event.step}")

    @workflow
    async def flow() -> None:
        await note("a")
        await note("b")

    async with App([flow], MemoryStore(), listener=StepListener()) as app:
        await app.run(flow)
    assert heard == ["step 1", "a", "step 2", "b"]
