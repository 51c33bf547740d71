"""Runs that are started from inside a tool of another run."""

import asyncio
import itertools
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import pytest
from tests.failed_runs import ends_with, fails_with
from tests.scripted_model import ScriptedModel, Turn, call, tool_reply
from tests.simulated_host import REMOVE_DONE, REMOVE_ENDED, SimulatedHost

from holdfast.checkpoint.errors import RunExists, StorePermissionError, StoreUnavailable
from holdfast.checkpoint.journal import Append, Entry, EntryKind
from holdfast.checkpoint.record import RunStatus
from holdfast.config import CheckpointSettings
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.agents.tool_context import ToolContext, current_call
from holdfast.core.errors import (
    ModelUnavailable,
    RunCancelled,
    RunError,
    RunFailed,
    RunInterrupted,
    RunLost,
    RunParked,
    SaveFailed,
    Shutdown,
    ShuttingDown,
)
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.native_loop import NATIVE_LOOP
from holdfast.core.run.messages import Message, Reply, ToolResult, Usage, User
from holdfast.core.run.waiting import RunWaiting

TEN = Usage(input_tokens=10)


@tool(effect="pure")
async def look() -> str:
    return "seen"


def parent_of(child: Agent, *turns: Any, keys: Sequence[str | None] = (None,), effect: str = "idempotent") -> Agent:
    """An agent whose tool `ask` runs the child, once for each key."""

    @tool(effect=Effect(effect))
    async def ask(prompt: str = "sub") -> list[str]:
        results = [await current_call().run(child, prompt, key=key) for key in keys]
        return [result.output for result in results]

    return Agent(name="parent", model=ScriptedModel(tool_reply(call("1", "ask"), usage=TEN), *turns), tools=[ask])


async def test_a_child_runs_inside_its_parents_tool_and_carries_its_parents_identity() -> None:
    host = SimulatedHost()
    seen: list[Any] = []

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        seen.extend(await host.list_records())
        return Reply(text="from the child")

    child = Agent(name="child", model=model, agent_id="7", model_tier="small")
    parent = parent_of(child, "done")
    await host.executor.run(parent, "go", run_id="p", caller_id="ann", labels={"team": "x"})
    [_, record] = seen
    assert record.run_id.startswith("p:")
    assert (record.parent_run_id, record.agent_name, record.caller_id) == ("p", "child", "ann")
    assert parent.model.requests[1][-1] == ToolResult(call_id="1", tool="ask", content=["from the child"])  # type: ignore[union-attr]
    assert await host.list_records() == []


async def test_a_child_runs_without_a_store_too() -> None:
    result = await Executor().run(parent_of(Agent(name="child", model=ScriptedModel("hello")), "done"), "go")
    assert result.output == "done"


async def test_what_a_child_used_is_counted_once_with_its_parent() -> None:
    child = Agent(name="child", model=ScriptedModel(Reply(text="x", usage=TEN)))
    grandparent_child = parent_of(child, Reply(text="y", usage=TEN))
    result = await Executor().run(parent_of(grandparent_child, Reply(text="z", usage=TEN)), "go")
    # Two requests of the run, two of its child, one of its grandchild; two tool calls.
    assert result.usage == Usage(input_tokens=50, requests=5, tool_calls=2)


async def test_what_a_failed_child_used_is_counted_too() -> None:
    child = Agent(
        name="child", model=ScriptedModel(tool_reply(call("1", "look"), usage=TEN), ValueError("broken")), tools=[look]
    )
    parent = parent_of(child, Reply(text="well", usage=TEN))
    result = await Executor().run(parent, "go")
    assert result.usage == Usage(input_tokens=30, requests=3, tool_calls=2)


async def test_a_child_that_fails_is_an_error_of_the_tool() -> None:
    parent = parent_of(Agent(name="child", model=ScriptedModel(ValueError("broken"))), "well")
    await SimulatedHost().executor.run(parent, "go", run_id="p")
    result = parent.model.requests[1][-1]  # type: ignore[union-attr]
    assert isinstance(result, ToolResult)
    assert result.error
    assert re.fullmatch(r"RunFailed: run p:\w+ failed: ValueError: broken", result.content)


async def test_several_children_of_one_call_are_told_apart_by_order_or_by_key() -> None:
    for keys in ((None, None), ("x", "y")):
        host = SimulatedHost()
        ids: set[str] = set()

        async def model(messages: Sequence[Message], tools: Sequence[ToolSchema], host: SimulatedHost = host) -> Reply:
            ids.update(record.run_id for record in await host.list_records())  # noqa: B023
            return Reply(text="x")

        await host.executor.run(parent_of(Agent(name="child", model=model), "done", keys=keys), "go", run_id="p")
        assert len(ids) == 3


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("when", ["at once", "while it runs", "when it is over", "when it has failed"])
async def test_the_same_key_again_is_the_same_child_and_is_counted_once(when: str, durable: bool) -> None:
    begun, asked_again = asyncio.Event(), asyncio.Event()
    asked = 0

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        nonlocal asked
        asked += 1
        begun.set()
        if when == "while it runs":
            await asked_again.wait()
        if isinstance(messages[-1], ToolResult) and when == "when it has failed":
            raise ValueError("broken")
        return (
            tool_reply(call("c", "look"), usage=TEN) if isinstance(messages[-1], User) else Reply(text="x", usage=TEN)
        )

    child = Agent(name="child", model=model, tools=[look])

    async def again(context: ToolContext) -> Any:
        await begun.wait()
        asked_again.set()
        return await context.run(child, "sub", key="same")

    @tool(effect="idempotent")
    async def twice() -> list[str]:
        context = current_call()
        first = context.run(child, "sub", key="same")
        if when.startswith("when"):
            both = [await asyncio.gather(first, return_exceptions=True)]
            both.append(await asyncio.gather(again(context), return_exceptions=True))
            return [str(getattr(end, "output", end)).rpartition("ValueError: ")[2] for [end] in both]
        second = context.run(child, "sub", key="same") if when == "at once" else again(context)
        return [result.output for result in await asyncio.gather(first, second)]

    parent = Agent(name="parent", model=ScriptedModel(tool_reply(call("1", "twice")), "done"), tools=[twice])
    host = SimulatedHost(loop_turns=1)
    result = await (host.executor if durable else Executor()).run(parent, "go", run_id="p")
    [result_message] = [message for message in result.messages if isinstance(message, ToolResult)]
    assert result_message.content == (["broken", "broken"] if when == "when it has failed" else ["x", "x"])
    assert (asked, result.usage.input_tokens) == (2, 10 if when == "when it has failed" else 20)
    assert not durable or await host.list_records() == []


async def test_who_asks_for_a_child_again_is_told_when_the_first_one_gives_up_on_it() -> None:
    host, begun = SimulatedHost(), asyncio.Event()

    async def hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    @tool(effect="idempotent")
    async def impatient() -> str:
        context, child = current_call(), Agent(name="child", model=hangs)
        first = asyncio.create_task(context.run(child, "sub", key="same"))
        await begun.wait()
        second = asyncio.create_task(context.run(child, "sub", key="same"))
        third = asyncio.create_task(context.run(child, "sub", key="same"))
        await asyncio.sleep(0)
        third.cancel()  # it goes alone
        await asyncio.wait([third])
        first.cancel()
        with pytest.raises(RunCancelled):
            await second
        return "gave up"

    model = ScriptedModel(tool_reply(call("1", "impatient")), "done")
    await host.executor.run(Agent(name="parent", model=model, tools=[impatient]), "go", run_id="p")
    assert model.requests[1][-1] == ToolResult(call_id="1", tool="impatient", content="gave up")
    assert await host.list_records() == []


async def test_a_call_id_that_is_used_again_in_a_later_step_starts_another_child() -> None:
    host = SimulatedHost()
    prompts: list[str] = []
    ids: set[str] = set()

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        assert isinstance(messages[-1], User)
        prompts.append(messages[-1].text)
        ids.update(record.run_id for record in await host.list_records() if record.parent_run_id)
        return Reply(text=messages[-1].text)

    parent = parent_of(Agent(name="child", model=model), tool_reply(call("1", "ask", prompt="second")), "done")
    await host.executor.run(parent, "go")
    assert prompts == ["sub", "second"]
    assert len(ids) == 2


# -- resume -----------------------------------------------------------------------------------------------------------


class Child:
    """A child that looks once and answers; may stop or kill the process instead of its n-th reply."""

    def __init__(self, *, stop: int | None = None, dies: SimulatedHost | None = None) -> None:
        self._stop, self._dies = stop, dies
        self.asked: list[tuple[Message, ...]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if self._stop == len(self.asked):
            if self._dies is not None:
                await self._dies.crash()
            raise Shutdown("now")
        self.asked.append(tuple(messages))
        if isinstance(messages[-1], ToolResult):
            return Reply(text="from the child", usage=TEN)
        return tool_reply(call("c", "look"), usage=TEN)

    @property
    def agent(self) -> Agent:
        return Agent(name="child", model=self, tools=[look])


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("stop", [0, 1])
async def test_a_resumed_parent_meets_its_half_way_child_and_counts_it_once(stop: int, dies: bool) -> None:
    host = SimulatedHost()
    before = Child(stop=stop, dies=host if dies else None)
    with pytest.raises(Shutdown):
        await host.executor.run(parent_of(before.agent, "never"), "go", run_id="p")
    records = {record.agent_name: record for record in await host.list_records()}
    assert records.keys() == {"parent", "child"}
    assert all(record.is_interrupted for record in records.values())

    after = Child()
    result = await SimulatedHost(host.inner).resume(parent_of(after.agent, Reply(text="done", usage=TEN)), "p")
    assert len(before.asked) + len(after.asked) == 2
    assert result.usage == Usage(input_tokens=40, requests=4, tool_calls=2)
    assert await host.list_records() == []


@pytest.mark.parametrize("ends", ["well", "badly"])
async def test_a_resumed_parent_meets_its_finished_child_and_counts_it_once(ends: str) -> None:
    host = SimulatedHost()
    asked: list[str] = []

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        asked.append("child")
        if isinstance(messages[-1], ToolResult) and ends == "badly":
            raise ValueError("broken")
        if isinstance(messages[-1], ToolResult):
            return Reply(text="from the child", usage=TEN)
        return tool_reply(call("c", "look"), usage=TEN)

    child = Agent(name="child", model=model, tools=[look])

    def parent(dies: SimulatedHost | None) -> Agent:
        @tool(effect="idempotent")
        async def ask() -> str:
            try:
                result = await current_call().run(child, "sub")
            except (ValueError, RunFailed) as exc:
                answer = f"it said: {exc}"
            else:
                answer = result.output
            if dies is not None:
                await dies.crash()
                raise Shutdown("the process is gone")
            return answer

        turns = (tool_reply(call("1", "ask"), usage=TEN), Reply(text="done", usage=TEN))
        return Agent(name="parent", model=ScriptedModel(*turns), tools=[ask])

    with pytest.raises(Shutdown):
        await host.executor.run(parent(host), "go", run_id="p")
    assert sorted((await host.get_statuses()).values()) == sorted(
        [RunStatus.RUNNING, RunStatus.DONE if ends == "well" else RunStatus.FAILED]
    )
    second = parent(None)
    result = await SimulatedHost(host.inner).resume(second, "p")
    assert len(asked) == 2
    [shown] = [message for message in second.model.requests[-1] if isinstance(message, ToolResult)]  # type: ignore[union-attr]
    assert ("broken" if ends == "badly" else "from the child") in shown.content
    spent = 40 if ends == "well" else 30
    assert result.usage.input_tokens == spent
    assert await host.list_records() == []


async def test_a_child_that_has_ended_is_kept_until_its_parent_has() -> None:
    """The throttle defers the save of the parent's step. A child that is gone by then would run again."""
    settings = CheckpointSettings(save_interval=timedelta(hours=1), retention=REMOVE_ENDED)
    host = SimulatedHost(settings=settings)
    child = Child()

    async def dies(messages: Sequence[Message]) -> Reply:
        await host.crash()
        raise LookupError

    with fails_with(LookupError):
        await host.executor.run(parent_of(child.agent, dies, effect="pure"), "go", run_id="p")
    again = Child()
    second = SimulatedHost(host.inner, settings=settings)
    result = await second.resume(parent_of(again.agent, "done", effect="pure"), "p")
    assert (result.output, len(child.asked), len(again.asked)) == ("done", 2, 0)
    assert await second.list_records() == []


async def test_a_resumed_parent_takes_its_child_from_a_worker_that_only_seems_alive() -> None:
    host = SimulatedHost()

    @tool(effect="pure")
    async def dies() -> None:
        await host.crash()
        raise Shutdown("the process is gone")

    def family(tools: Sequence[Any], *turns: Any) -> Agent:
        return parent_of(Agent(name="child", model=ScriptedModel(*turns), tools=tools), "done")

    with pytest.raises(Shutdown):
        await host.executor.run(family([dies], tool_reply(call("1", "dies"))), "go", run_id="p")
    [child] = [record for record in await host.list_records() if record.parent_run_id == "p"]
    # It claimed the child, and then a network partition cut it off: its heartbeat is still fresh.
    stranger = SimulatedHost(host.inner)
    await stranger.checkpoints.open()
    claim = await stranger.store.claim(child.run_id, stranger.checkpoints.worker_id)
    second = SimulatedHost(host.inner)
    result = await second.resume(family([dies], "from the child"), "p")
    assert result.output == "done"
    with pytest.raises(RunLost):
        await stranger.store.append(claim, Append(entries=(), progress=b"{}"))


@pytest.mark.parametrize("levels", [1, 2])
async def test_a_child_is_met_again_though_a_throttle_holds_back_its_parents_saves(levels: int) -> None:
    """A model that is called again gives its call another id: the child that has acted would never be met."""
    ids, effects = itertools.count(), 0

    def run_below(agent: Agent) -> Agent:
        @tool(effect="idempotent")
        async def ask() -> str:
            return str((await current_call().run(agent, "sub")).output)

        return Agent(name=f"above {agent.name}", model=asks_once("ask"), tools=[ask])

    def asks_once(name: str) -> Any:
        async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
            if isinstance(messages[-1], ToolResult):
                return Reply(text=str(messages[-1].content))
            return tool_reply(call(f"call-{next(ids)}", name))

        return model

    def family(dies: SimulatedHost | None) -> Agent:
        @tool
        async def act() -> str:
            nonlocal effects
            effects += 1
            if dies is not None:
                await dies.crash()
                raise Shutdown("the process is gone")
            return "done"

        agent = Agent(name="child", model=asks_once("act"), tools=[act])
        for _ in range(levels):
            agent = run_below(agent)
        return agent

    host = SimulatedHost(settings=CheckpointSettings(save_interval=timedelta(hours=1)))
    with pytest.raises(Shutdown):
        await host.executor.run(family(host), "go", run_id="p")
    result = await SimulatedHost(host.inner).resume(family(None), "p")
    assert (effects, result.usage.requests) == (1, 2 * (levels + 1))
    assert "Unknown outcome" in result.output
    assert await host.list_records() == []


async def test_a_parent_whose_intent_is_saved_starts_a_child_without_saving_again() -> None:
    host = SimulatedHost()
    with pytest.raises(Shutdown):
        await host.executor.run(parent_of(Child(stop=0).agent, "never"), "go", run_id="p")
    again = SimulatedHost(host.inner)
    await again.resume(parent_of(Child().agent, "done"), "p")
    # The parent's claim, and at once the child's.
    assert again.store.write_calls[:2] == ["claim", "claim"]


async def test_a_parent_that_cannot_save_its_intent_is_interrupted_before_it_starts_a_child() -> None:
    host, child = SimulatedHost(settings=CheckpointSettings(store_timeout=timedelta(0))), Child()
    host.store.fail("append", StoreUnavailable("no answer"))
    with pytest.raises(SaveFailed, match="run p could not be saved"):
        await host.executor.run(parent_of(child.agent, "never"), "go", run_id="p")
    assert (child.asked, await host.get_statuses()) == ([], {"p": RunStatus.INTERRUPTED})


async def test_a_store_that_cannot_look_up_a_child_interrupts_the_parent_and_never_becomes_a_result() -> None:
    host = SimulatedHost()
    host.store.fail("load", StoreUnavailable("no answer"))
    with pytest.raises(SaveFailed, match="child"):
        await host.executor.run(parent_of(Child().agent, "never"), "go", run_id="p")
    assert await host.get_statuses() == {"p": RunStatus.INTERRUPTED}
    assert (await SimulatedHost(host.inner).resume(parent_of(Child().agent, "done"), "p")).output == "done"


@pytest.mark.parametrize("error", [StorePermissionError("read-only"), OSError("no disk"), RunExists("c")], ids=repr)
async def test_a_store_that_cannot_create_a_child_interrupts_the_parent_and_never_becomes_a_result(
    error: Exception,
) -> None:
    host = SimulatedHost(require_durability=True)

    async def refuse_child(method: str) -> None:
        if method == "create" and await host.get_statuses():
            raise error

    host.store.before = refuse_child
    with pytest.raises(SaveFailed, match="a child, could not be created"):
        await host.executor.run(parent_of(Child().agent, "never"), "go", run_id="p")
    [parent] = await host.list_records()
    assert (parent.status, parent.strikes) == (RunStatus.INTERRUPTED, 0)
    assert (await SimulatedHost(host.inner).resume(parent_of(Child().agent, "done"), "p")).output == "done"


async def test_a_child_that_cannot_be_read_parks_its_parent() -> None:
    host = SimulatedHost()
    with pytest.raises(Shutdown):
        await host.executor.run(parent_of(Child(stop=1).agent, "never"), "go", run_id="p")
    [child] = [record for record in await host.list_records() if record.parent_run_id]
    claim = await host.inner.claim(child.run_id, "vandal")
    nonsense = Entry(seq=child.next_seq, kind=EntryKind.MESSAGE, body=b"nonsense")
    await host.inner.append(claim, Append(entries=[nonsense], progress=child.progress))
    with pytest.raises(RunParked, match="damaged"):
        await SimulatedHost(host.inner).resume(parent_of(Child().agent, "never"), "p")
    assert (await host.get_statuses())["p"] is RunStatus.PARKED


# -- stopped together -------------------------------------------------------------------------------------------------


async def test_a_child_that_is_interrupted_stops_its_parent_whatever_the_tool_makes_of_it() -> None:
    host = SimulatedHost()

    @tool(effect="idempotent")
    async def careless() -> str:
        try:
            result = await current_call().run(Child(stop=1).agent, "sub")
        except Exception:
            return "the child failed, never mind"
        return str(result.output)

    @tool(effect="idempotent", on_error="raise")
    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(current_call().run(Child(stop=1).agent, "sub"))

    for name in ("careless", "grouped"):
        agent = Agent(
            name="parent", model=ScriptedModel(tool_reply(call("1", name)), "never"), tools=[careless, grouped]
        )
        with pytest.raises(Shutdown):
            await host.executor.run(agent, "go", run_id=name)
    assert set((await host.get_statuses()).values()) == {RunStatus.INTERRUPTED}
    assert len(await host.list_records()) == 4


async def test_a_parent_whose_child_was_lost_to_another_worker_gives_up_its_own_claim() -> None:
    """A live worker that owned the parent and did not execute it would keep all others from it."""
    host = SimulatedHost()
    stranger = SimulatedHost(host.inner)
    await stranger.checkpoints.open()

    @tool(effect="pure")
    async def lose() -> str:
        await stranger.store.claim(current_call().run_id, stranger.checkpoints.worker_id, steal=True)
        return "lost"

    child = Agent(name="child", model=ScriptedModel(tool_reply(call("1", "lose")), "never"), tools=[lose])
    with pytest.raises(RunInterrupted, match="a child, was lost to another worker"):
        await host.executor.run(parent_of(child, "never"), "go", run_id="p")
    assert (await host.get_statuses())["p"] is RunStatus.INTERRUPTED


async def test_a_child_that_parks_parks_its_parent_and_both_go_on_together() -> None:
    host = SimulatedHost()

    @tool
    async def approve() -> str:
        raise RunParked("approval")

    child = Agent(name="child", model=ScriptedModel(tool_reply(call("c", "approve"))), tools=[approve])
    with pytest.raises(RunParked):
        await host.executor.run(parent_of(child, "never"), "go", run_id="p")
    assert set((await host.get_statuses()).values()) == {RunStatus.PARKED}

    @tool(name="approve")
    async def approved() -> str:
        return "yes"

    child = Agent(name="child", model=ScriptedModel(tool_reply(call("c", "approve")), "bought"), tools=[approved])
    assert (await SimulatedHost(host.inner).resume(parent_of(child, "done"), "p")).output == "done"
    assert await host.list_records() == []


@pytest.mark.parametrize(
    ("stop", "status"),
    [(Shutdown("now"), RunStatus.INTERRUPTED), (RunParked("approval"), RunStatus.PARKED), (ValueError("broken"), None)],
    ids=repr,
)
async def test_a_child_goes_down_as_its_parent_does_when_another_call_of_the_batch_ends_the_run(
    stop: Exception, status: RunStatus | None
) -> None:
    host = SimulatedHost()
    begun = asyncio.Event()

    async def hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    @tool(effect="idempotent")
    async def ask() -> None:
        await current_call().run(Agent(name="child", model=hangs), "sub")

    @tool(effect="pure", on_error="raise")
    async def breaks() -> None:
        await begun.wait()
        raise stop

    agent = Agent(
        name="parent", model=ScriptedModel(tool_reply(call("1", "ask"), call("2", "breaks"))), tools=[ask, breaks]
    )
    with pytest.raises(Exception, match=r"now|approval|broken"):
        await host.executor.run(agent, "go", run_id="p")
    statuses = await host.get_statuses()
    if status is None:
        assert statuses == {}
    else:
        assert statuses.pop("p") is status
        assert set(statuses.values()) == {RunStatus.INTERRUPTED}


@pytest.mark.parametrize("on_error", ["report", "raise"])
@pytest.mark.parametrize(
    ("stop", "status"),
    [(RunInterrupted("busy"), RunStatus.INTERRUPTED), (RunParked("approval"), RunStatus.PARKED)],
    ids=repr,
)
async def test_a_run_is_left_with_its_child_though_another_call_fails_before_that_one_is_over(
    stop: Exception, status: RunStatus, on_error: Literal["report", "raise"]
) -> None:
    host = SimulatedHost()
    left = asyncio.Event()
    made = 0

    @tool(effect="idempotent")
    async def ask() -> str:
        try:
            child = Agent(name="child", model=ScriptedModel(stop), retry=Retry(max_tries=1))
            return str((await current_call().run(child, "sub")).output)
        finally:
            left.set()
            await asyncio.Event().wait()  # it tidies up, until it is stopped

    @tool(effect="idempotent", on_error=on_error)
    async def breaks() -> str:
        nonlocal made
        made += 1
        await left.wait()
        raise ValueError("broken")

    turns = tool_reply(call("1", "ask"), call("2", "breaks"))
    with ends_with(stop):
        await host.executor.run(Agent(name="parent", model=ScriptedModel(turns), tools=[ask, breaks]), "go", run_id="p")
    assert set((await host.get_statuses()).values()) == {status}

    @tool(name="ask", effect="idempotent")
    async def answered() -> str:
        left.set()
        return str((await current_call().run(Agent(name="child", model=ScriptedModel("yes")), "sub")).output)

    model = ScriptedModel(turns, "done")
    tools = [answered, tool(effect="idempotent")(breaks.function)]
    await host.resume(Agent(name="parent", model=model, tools=tools), "p")
    assert [each.content for each in model.requests[-1][-2:]] == ["yes", "ValueError: broken"]  # type: ignore[union-attr]
    assert (made, await host.list_records()) == (2, [])


async def test_a_tool_that_gives_up_on_its_child_ends_it_and_continues() -> None:
    host = SimulatedHost()

    async def hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    @tool(effect="idempotent")
    async def impatient() -> str:
        try:
            async with asyncio.timeout(0):
                await current_call().run(Agent(name="child", model=hangs), "sub")
        except TimeoutError:
            return "gave up"
        return "never"

    model = ScriptedModel(tool_reply(call("1", "impatient")), "done")
    await host.executor.run(Agent(name="parent", model=model, tools=[impatient]), "go", run_id="p")
    assert model.requests[1][-1] == ToolResult(call_id="1", tool="impatient", content="gave up")
    assert await host.list_records() == []


async def test_a_cancel_of_the_parent_by_its_caller_ends_the_child_too() -> None:
    host = SimulatedHost(settings=CheckpointSettings(retention=REMOVE_DONE))
    begun = asyncio.Event()

    async def hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    run = asyncio.create_task(
        host.executor.run(parent_of(Agent(name="child", model=hangs)), "go", run_id="p", on_cancel="cancel")
    )
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert set((await host.get_statuses()).values()) == {RunStatus.CANCELLED}


# -- several children of one call -------------------------------------------------------------------------------------


class Siblings:
    """A parent whose tool runs two children at once: one looks and then waits indefinitely, the other ends before."""

    def __init__(self, how: str, end: Exception | str, last: Turn = "done") -> None:
        self.waits, self.end = asyncio.Event(), end
        self.after = Agent(name="after", model=ScriptedModel("never"))
        self.agents = {
            name: Agent(name=name, model=getattr(self, name), tools=[look], retry=Retry(max_tries=1))
            for name in ("slow", "other")
        }
        tools = [tool(effect="idempotent")(getattr(self, how))]
        self.model = ScriptedModel(tool_reply(call("1", how), usage=TEN), last)
        self.parent = Agent(name="parent", model=self.model, tools=tools)

    async def slow(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if isinstance(messages[-1], User):
            return tool_reply(call("c", "look"), usage=TEN)
        self.waits.set()
        if self.end != "well":
            await asyncio.Event().wait()
        return Reply(text="slow", usage=TEN)

    async def other(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        await self.waits.wait()
        if isinstance(self.end, Exception):
            raise self.end
        return Reply(text="other", usage=TEN)

    def both(self) -> list[Any]:
        return [current_call().run(agent, name, key=name) for name, agent in self.agents.items()]

    async def gathered(self) -> list[str]:
        return [result.output for result in await asyncio.gather(*self.both())]

    async def grouped(self) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in self.both()]
        return [task.result().output for task in tasks]

    async def swallowed(self) -> list[str]:
        try:
            return await self.grouped()
        except ExceptionGroup as exc:
            return [repr(each) for each in exc.exceptions]

    async def detached(self) -> list[str]:
        slow, other = self.both()
        task = asyncio.create_task(slow)
        outputs = [(await other).output]
        return [(await task).output, *outputs] if self.end == "well" else outputs

    async def queued(self) -> list[str]:
        async def later() -> Any:
            await ended.wait()
            return await context.run(self.after, "after", key="after")

        ended, context = asyncio.Event(), current_call()
        first = asyncio.ensure_future(asyncio.gather(*self.both(), later()))
        first.add_done_callback(lambda _: ended.set())
        return [result.output for result in await first]


@pytest.mark.parametrize("swallows", [False, True])
async def test_a_child_whose_provider_is_down_makes_its_own_call_wait_and_no_other(swallows: bool) -> None:
    host = SimulatedHost()
    outages = [ModelUnavailable("down", timedelta(seconds=50))]

    async def down(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if outages:
            raise outages.pop()
        return Reply(text="up")

    @tool(effect="idempotent")
    async def ask(number: int) -> str:
        child = Agent(name="child", model=down if number == 1 else ScriptedModel("yes"), retry=Retry(max_tries=1))
        try:
            return str((await current_call().run(child, f"sub {number}")).output)
        except RunError:
            if not swallows:
                raise
            return "no answer"

    turns = tool_reply(*(call(str(number), "ask", number=number) for number in range(3)))
    agent = Agent(name="parent", model=ScriptedModel(turns, "done"), tools=[ask])
    with pytest.raises(RunWaiting, match="waits for its model") as waiting:
        await host.executor.run(agent, "go", run_id="p")
    [waited] = waiting.value.calls
    assert (waited.call_id, waited.kind, waited.timed, waiting.value.only_for_time) == ("1", "child", True, True)
    records = {record.run_id: record for record in await host.list_records()}
    parent = records.pop("p")
    assert (parent.status, parent.wake_at) == (RunStatus.WAITING, waited.expires_at)
    assert sorted(record.status for record in records.values()) == ["done", "done", "interrupted"]
    model = ScriptedModel(turns, "done")
    claim = await host.store.claim("p", host.checkpoints.worker_id, statuses={RunStatus.WAITING})
    resumption = host.checkpoints.resume(claim, await host.store.load("p"), NATIVE_LOOP.codec)
    await host.executor.resume(Agent(name="parent", model=model, tools=[ask]), resumption)
    assert [each.content for each in model.requests[-1][-3:]] == ["yes", "up", "yes"]  # type: ignore[union-attr]
    assert await host.list_records() == []


@pytest.mark.parametrize("how", ["gathered", "grouped", "swallowed", "detached"])
async def test_a_child_that_is_left_takes_its_siblings_along_and_all_of_them_are_met_again(how: str) -> None:
    host = SimulatedHost(loop_turns=1)
    with pytest.raises(RunInterrupted):
        await host.executor.run(Siblings(how, RunInterrupted("busy")).parent, "go", run_id="p")
    assert host.executor.active_run_ids == frozenset()
    assert [record.status for record in await host.list_records()] == [RunStatus.INTERRUPTED] * 3
    again = Siblings(how, "well", Reply(text="done", usage=TEN))
    result = await host.resume(again.parent, "p")
    assert again.model.requests[-1][-1] == ToolResult(call_id="1", tool=how, content=["slow", "other"])
    assert result.usage == Usage(input_tokens=50, requests=5, tool_calls=2)
    assert await host.list_records() == []


@pytest.mark.parametrize(
    ("how", "end", "used"),
    [
        *((how, ValueError("broken"), 20) for how in ("gathered", "detached", "queued")),
        ("detached", "and no task waits for the other", 30),
    ],
)
async def test_a_child_whose_call_is_over_is_ended_and_counted(how: str, end: Exception | str, used: int) -> None:
    host = SimulatedHost(loop_turns=1)
    active: frozenset[str] = frozenset()

    async def last(messages: Sequence[Message]) -> Reply:
        nonlocal active
        active = host.executor.active_run_ids
        return Reply(text="done")

    siblings = Siblings(how, end, last)
    result = await host.executor.run(siblings.parent, "go", run_id="p")
    assert active == {"p"}
    assert result.usage.input_tokens == used
    assert siblings.after.model.requests == []  # type: ignore[union-attr]
    assert await host.list_records() == []


@pytest.mark.parametrize("status", [RunStatus.INTERRUPTED, RunStatus.PARKED])
async def test_a_tool_that_stops_its_run_leaves_the_child_that_it_does_not_wait_for(status: RunStatus) -> None:
    host, siblings = SimulatedHost(), Siblings("gathered", "later")

    @tool(effect="idempotent")
    async def stops() -> None:
        slow, other = siblings.both()
        other.close()
        child = asyncio.create_task(slow)
        await siblings.waits.wait()
        assert not child.done()
        raise Shutdown("now") if status is RunStatus.INTERRUPTED else RunParked("approval")

    parent = Agent(name="parent", model=ScriptedModel(tool_reply(call("1", "stops"))), tools=[stops])
    with pytest.raises((Shutdown, RunParked)):
        await host.executor.run(parent, "go", run_id="p")
    assert {record.agent_name: record.status for record in await host.list_records()} == {
        "parent": status,
        "slow": RunStatus.INTERRUPTED,
    }


async def test_a_cancel_while_the_children_of_a_call_are_ended_waits_for_them() -> None:
    host, siblings = SimulatedHost(), Siblings("gathered", ValueError("broken"))
    settling, go_on = asyncio.Event(), asyncio.Event()
    ends = 0

    async def second_end(method: str) -> None:
        nonlocal ends
        ends += method == "release"
        if method == "release" and ends == 2:
            settling.set()
            await go_on.wait()

    host.store.before = second_end
    run = asyncio.create_task(host.executor.run(siblings.parent, "go", run_id="p", on_cancel="cancel"))
    await settling.wait()
    run.cancel()
    await asyncio.sleep(0)
    assert len(host.executor.active_run_ids) == 2
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (host.executor.active_run_ids, await host.list_records()) == (frozenset(), [])


async def test_a_child_that_was_resumed_by_hand_continues_under_its_parent() -> None:
    host = SimulatedHost()
    with pytest.raises(Shutdown):
        await host.executor.run(parent_of(Child(stop=1).agent, "never"), "go", run_id="p")
    [record] = [record for record in await host.list_records() if record.parent_run_id]
    begun = asyncio.Event()

    async def hangs(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    by_hand = asyncio.create_task(host.resume(Agent(name="child", model=hangs, tools=[look]), record.run_id))
    await begun.wait()
    parent = parent_of(Child().agent, "done")
    await host.resume(parent, "p")
    assert parent.model.requests[-1][-1] == ToolResult(call_id="1", tool="ask", content=["from the child"])  # type: ignore[union-attr]
    with pytest.raises(RunInterrupted, match="under its parent"):
        await by_hand
    assert await host.list_records() == []


async def test_during_a_shutdown_a_child_that_was_resumed_by_hand_is_left_to_who_resumed_it() -> None:
    host = SimulatedHost()
    with pytest.raises(Shutdown):
        await host.executor.run(parent_of(Child(stop=1).agent, "never"), "go", run_id="p")
    [record] = [record for record in await host.list_records() if record.parent_run_id]
    child_begun, parent_begun, draining, go_on = (asyncio.Event() for _ in range(4))

    async def slow(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        child_begun.set()
        await go_on.wait()
        return tool_reply(call("d", "look"))

    @tool(effect="idempotent")
    async def ask() -> None:
        parent_begun.set()
        await draining.wait()
        await current_call().run(Child().agent, "sub")

    by_hand = asyncio.create_task(host.resume(Agent(name="child", model=slow, tools=[look]), record.run_id))
    await child_begun.wait()
    parent = asyncio.create_task(host.resume(Agent(name="parent", model=ScriptedModel(), tools=[ask]), "p"))
    await parent_begun.wait()
    shutdown = asyncio.create_task(host.executor.shutdown())
    await asyncio.sleep(0)
    assert host.executor.draining
    draining.set()
    with pytest.raises(ShuttingDown):
        await parent
    go_on.set()
    with pytest.raises(Shutdown, match="after step 2"):
        await by_hand
    await shutdown
    assert set((await host.get_statuses()).values()) == {RunStatus.INTERRUPTED}
