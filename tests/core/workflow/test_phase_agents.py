"""Phases that a workflow, or another agent, executes, beside phases of a model, in one run."""

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Bounds, Phase, Reply, RunWaiting, Usage, tool
from holdfast.batteries.budget import Budget, BudgetExhausted, Limit
from holdfast.checkpoint.store import get_record
from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import DefinitionError, MissingDefinition, StepsExceeded
from holdfast.core.execution.executor import Executor
from holdfast.core.run.messages import System, User
from holdfast.core.run.status import RunStatus
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.stores.memory import MemoryStore
from holdfast.testing import reenter_runs
from holdfast.web.ui.run_view.run_outline import build_outline
from holdfast.web.ui.run_view.run_timeline import build_timeline
from holdfast.web.ui.run_view.run_window import read_window
from holdfast.workflows import run_agent, wait_for, workflow

DONE: list[str] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    DONE.clear()


async def take_back(context: ToolContext, result: str) -> None:
    DONE.append(f"undo {context.arguments['name']}")


@tool(undo=take_back)
async def pay(name: str) -> str:
    DONE.append(f"pay {name}")
    return f"receipt {name}"


@tool(effect="pure")
async def look(number: int) -> int:
    return number


@dataclass
class Plan:
    city: str
    days: int


@workflow
async def make_plan(prompt: str, days: int) -> Plan:
    return Plan(prompt, days + await look(1))


@workflow
async def book(plan: Plan, text: str) -> list[str]:
    return [plan.city, str(plan.days), text, await pay("hotel")]


@workflow
async def look_often(times: int) -> int:
    return sum([await look(number) for number in range(times)])


async def test_workflows_and_models_take_turns_and_get_what_came_before_by_name() -> None:
    model = ScriptedModel("written")
    agent = Agent(
        name="trip",
        model=model,
        phases=[
            Phase(name="plan", agent=make_plan, prompt="to $prompt"),
            Phase(name="write", prompt="Write about $plan"),
            Phase(name="book", agent=book, prompt="$write!"),
        ],
    )
    async with App([agent], MemoryStore()) as app:
        result = await app.run(agent, "Rome", inputs={"days": 2}, run_id="r")
        assert result.output == ["to Rome", "3", "written!", "receipt hotel"]
        assert (await app.result("r")).output == result.output, "the same from any process"
        assert [(phase.name, phase.output, phase.steps) for phase in result.phases] == [
            ("plan", {"city": "to Rome", "days": 3}, 1),
            ("write", "written", 2),
            ("book", ["to Rome", "3", "written!", "receipt hotel"], 3),
        ]
        assert result.usage.requests == 1
    assert model.requests == [(User('Write about {"city":"to Rome","days":3}'),)]


async def test_a_phase_may_have_another_agent_with_its_own_model_tools_and_instructions() -> None:
    inner = ScriptedModel(tool_reply(call("c", "look", number=1)), "seen")
    scout = Agent(name="scout", model=inner, tools=[look], instructions="Look.")
    outer = ScriptedModel("said")
    agent = Agent(name="a", model=outer, phases=[Phase(name="scout", agent=scout), Phase(name="say", prompt="$scout")])
    result = await Executor().run(agent, "go")
    assert result.output == "said"
    assert inner.requests[0] == (System("Look."), User("go"))
    assert outer.requests == [(User("seen"),)]


# -- bounds and budgets -----------------------------------------------------------------------------------------


def make_looking_agent(*replies: Any, agent_steps: int = 100, phase: Bounds | None = None) -> Agent:
    return Agent(
        name="a",
        model=ScriptedModel(*replies),
        tools=[look],
        bounds=Bounds(max_steps=agent_steps),
        phases=[
            Phase(name="many", agent=look_often, bounds=phase),
            Phase(name="own", prompt="go"),
        ],
    )


async def test_the_steps_of_a_workflow_do_not_count_towards_the_bounds_of_the_agent() -> None:
    looks = [tool_reply(call("c", "look", number=number)) for number in range(2)]
    agent = make_looking_agent(*looks, "end", agent_steps=3)
    result = await Executor().run(agent, "", inputs={"times": 150})
    assert (result.output, result.steps) == ("end", 153)
    with fails_with(StepsExceeded, "3"):
        await Executor().run(make_looking_agent(*looks, looks[0], "end", agent_steps=3), "", inputs={"times": 1})


async def test_a_workflow_has_the_bounds_of_its_phase_or_else_its_own() -> None:
    with fails_with(StepsExceeded, "4"):
        await Executor().run(make_looking_agent("end", phase=Bounds(max_steps=4)), "", inputs={"times": 5})
    short = workflow(bounds=Bounds(max_steps=2))(look_often.function)
    with fails_with(StepsExceeded, "2"):
        await Executor().run(Agent(name="a", phases=[Phase(name="p", agent=short)]), "", inputs={"times": 3})


async def test_a_budget_holds_over_phases_of_both_kinds() -> None:
    @workflow
    async def pay_and_ask(text: str) -> str:
        return f"{await pay('hotel')} {await run_agent(clerk, text)}"

    usage = Usage(input_tokens=60)
    clerk = Agent(name="clerk", model=ScriptedModel(Reply(text="noted", usage=usage)))
    agent = Agent(
        name="trip",
        phases=[
            Phase(name="write", model=ScriptedModel(Reply(text="written", usage=usage))),
            Phase(name="book", agent=pay_and_ask, prompt="$write"),
            Phase(name="end", model=ScriptedModel(Reply(text="over", usage=usage)), prompt="$book"),
        ],
    )
    budget = Budget(Limit(tokens=50, runs=1, per="all"))
    async with App([agent, clerk], MemoryStore(), budget=budget) as app:
        with pytest.raises(BudgetExhausted, match="60 of 50 tokens"):
            await app.run(agent, "go", run_id="r")
        assert ((await app.get("r")).phase, DONE) == ("book", []), "a step of the workflow is refused"
        await budget.set_limit("all", "tokens", 100)
        with pytest.raises(BudgetExhausted, match="120 of 100 tokens"):
            await app.result("r")
        assert ((await app.get("r")).phase, DONE) == ("end", ["pay hotel"]), "the workflow and its child have spent"
        await budget.set_limit("all", "tokens", 200)
        assert (await app.result("r", through_waits=True)).output == "over"
        spent = await budget.spent("all")
    assert (spent.tokens, spent.runs, DONE) == (180, 1, ["pay hotel"])


# -- waits, cancel, undo ----------------------------------------------------------------------------------------


@workflow
async def wait_and_pay(prompt: str) -> str:
    await pay("first")
    return f"{prompt} {await wait_for('go')} {await pay('second')}"


def make_waiting_agent(last: ScriptedModel, **last_phase: Any) -> Agent:
    return Agent(
        name="waiting",
        phases=[
            Phase(name="begin", model=ScriptedModel("begun")),
            Phase(name="wait", agent=wait_and_pay, prompt="$begin"),
            Phase(name="end", model=last, prompt="$wait", **last_phase),
        ],
    )


async def test_a_workflow_that_waits_in_a_phase_resumes_there() -> None:
    store, agent = MemoryStore(), make_waiting_agent(ScriptedModel("over"))
    async with App([agent], store) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "x", run_id="r")
        assert (await app.get("r")).phase == "wait"
    async with App([agent], store) as app:
        await app.signal("r", "go", "now")
        assert (await app.result("r")).output == "over"
        [begin, wait, _] = (await app.result("r")).phases
        assert (begin.output, wait.output) == ("begun", "begun now receipt second")
    assert DONE == ["pay first", "pay second"]


async def test_a_cancel_undoes_the_steps_of_the_phase_in_progress() -> None:
    agent = make_waiting_agent(ScriptedModel("over"))
    async with App([agent], MemoryStore()) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "x", run_id="r")
        await app.cancel("r")
        with pytest.raises(Exception, match="cancelled"):
            await app.result("r", through_waits=True)
    assert DONE == ["pay first", "undo first"]


async def test_the_steps_of_a_finished_phase_are_final() -> None:
    last = ScriptedModel(tool_reply(call("c", "wait_for", name="more")))
    agent = make_waiting_agent(last, tools=[wait_for])
    async with App([agent], MemoryStore()) as app:
        await app.submit(agent, "x", run_id="r")
        await app.signal("r", "go", "now")
        with pytest.raises(RunWaiting):
            await app.result("r")
        await app.cancel("r")
        assert (await app.get("r")).status is RunStatus.CANCELLED, "without a worker that would have to undo"
    assert DONE == ["pay first", "pay second"]


# -- before a deploy --------------------------------------------------------------------------------------------


async def test_a_run_in_a_phase_of_a_workflow_is_reentered_and_no_model_is_called() -> None:
    store, last = MemoryStore(), ScriptedModel()
    agent = make_waiting_agent(last)
    async with App([agent], store) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "x", run_id="r")
    DONE.clear()

    @workflow
    async def wait_no_more(prompt: str) -> str:
        return prompt

    @workflow
    async def pay_more(prompt: str) -> str:
        return str(await pay("more"))

    async def reenter(inner: AgentSource) -> list[str]:
        phases = [agent.phases[0], replace(agent.phases[1], agent=inner), agent.phases[2]]
        async with App([replace(agent, phases=phases)], store, worker=False) as app:
            found = await reenter_runs(app.open_store, app.agents)
            assert [run.run_id for run in found.runs] == ["r"]
            return found.mismatches

    assert await reenter(wait_and_pay) == []
    [mismatch] = await reenter(pay_more)
    assert "changed arguments" in mismatch
    assert all("does not repeat" in each for each in await reenter(wait_no_more))
    assert DONE == []
    assert last.requests == []


# -- definitions ------------------------------------------------------------------------------------------------


def test_a_phase_with_an_agent_takes_nothing_that_the_agent_has() -> None:
    with pytest.raises(DefinitionError, match="give model, tools to its agent book"):
        Phase(name="p", agent=book, model=ScriptedModel(), tools=[])
    with pytest.raises(DefinitionError, match="give the agent or the workflow itself; to name one, call run_agent"):
        Phase(name="p", agent="book")  # type: ignore[arg-type]
    phased = Agent(name="phased", phases=[Phase(name="q", agent=book)])
    with pytest.raises(DefinitionError, match="phased has phases too"):
        Phase(name="p", agent=phased)
    with pytest.raises(DefinitionError, match="no model"):
        Agent(name="a", phases=[Phase(name="p", agent=book), Phase(name="own")])


async def test_arguments_that_do_not_fit_fail_the_run_before_a_step_is_made() -> None:
    agent = Agent(name="a", phases=[Phase(name="p", agent=book)])
    with fails_with(DefinitionError, "plan"):
        await Executor().run(agent, "x")
    alone = Agent(name="a", phases=[Phase(name="p", agent=look_often, prompt="unused")])
    with fails_with(DefinitionError, "takes no prompt"):
        await Executor().run(alone, "", inputs={"times": 1})
    assert DONE == []


async def test_a_phase_that_was_begun_by_a_workflow_is_not_continued_by_a_model() -> None:
    store, agent = MemoryStore(), make_waiting_agent(ScriptedModel("over"))
    async with App([agent], store) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "x", run_id="r")
    model = ScriptedModel("wrong")
    changed = replace(agent, phases=[agent.phases[0], Phase(name="wait", model=model), agent.phases[2]])
    async with App([changed], store, worker=False) as app:
        await app.signal("r", "go", "now")
        with pytest.raises(MissingDefinition, match="as a workflow"):
            await app.resume("r")
    async with App([agent], store, worker=False) as app:
        assert (await app.resume("r")).output == "over"
    assert model.requests == []


# -- what a reader sees -----------------------------------------------------------------------------------------


async def test_the_page_names_the_calls_that_a_phase_makes_at_once_and_shows_that_it_waits() -> None:
    store = MemoryStore()

    @tool
    async def reserve(city: str) -> str:
        while city == "Porto" and summarize_run(await get_record(store, "r")).steps < 2:
            await store.wait_for_change(timedelta(milliseconds=10))
        return city

    @workflow
    async def book_both() -> list[Any]:
        cities = await asyncio.gather(reserve("Porto"), reserve("Faro"))
        return [*cities, await wait_for("go")]

    agent = Agent(
        name="trip", phases=[Phase(name="plan", model=ScriptedModel("both")), Phase(name="book", agent=book_both)]
    )

    async def read_page() -> tuple[list[tuple[str, list[str]]], list[tuple[str, str]]]:
        record = await get_record(store, "r")
        steps = (await read_window(store, record)).steps.steps
        outline, timeline = build_outline(summarize_run(record), steps), build_timeline(steps, now=record.updated_at)
        assert timeline is not None
        groups = [(group.phase, [step.title for step in group.steps]) for group in outline.groups]
        return groups, [(row.label, row.bars[-1].kind) for row in timeline.rows]

    async with App([agent], store) as app:
        with pytest.raises(RunWaiting):
            await app.run(agent, "go", run_id="r")
        groups, _ = await read_page()
        assert groups == [("plan", ["both"]), ("book", ["reserve, reserve", "reserve", "wait_for"])]
        await app.signal("r", "go")
        await app.result("r")
        _, rows = await read_page()
    assert rows == [
        ("1 · both", "model"),
        ("2 · reserve, reserve", "tool"),
        ("reserve", "tool"),
        ("3 · reserve", "tool"),
        ("reserve", "tool"),
        ("4 · wait_for", "wait"),
    ]
