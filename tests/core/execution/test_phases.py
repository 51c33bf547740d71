"""Pipelines: phases in order, each seeing what came before it, and resumed where they were."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.core.null_listener import NullListener
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast.checkpoint.record import Release, RunStatus
from holdfast.core.agents.agent import Agent, Bounds, Phase
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.errors import (
    MissingDefinition,
    PayloadError,
    RepeatedToolCalls,
    RuntimeExceeded,
    Shutdown,
    StepsExceeded,
)
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.native_loop import NativeLoop
from holdfast.core.json_value import to_json_value
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply, System, ToolResult, Usage, User
from holdfast.core.run.state import PhaseOutput
from holdfast.testing.manual_clock import ManualClock

MINUTE = timedelta(minutes=1)


@tool(effect="pure")
async def look(n: int = 0) -> str:
    return f"seen {n}"


async def test_phases_run_in_order_and_each_can_use_the_outputs_before_it() -> None:
    plan, write = ScriptedModel("a plan"), ScriptedModel("a text")
    agent = Agent(
        name="a",
        phases=[
            Phase(name="plan", model=plan, prompt="Plan for: $prompt"),
            Phase(name="write", model=write, prompt="Of $prompt, write by: ${plan}; $$5 and $unknown"),
        ],
    )
    result = await Executor().run(agent, "cake")
    assert plan.requests == [(User("Plan for: cake"),)]
    assert write.requests == [(User("Of cake, write by: a plan; $5 and $unknown"),)]
    assert result.output == "a text"
    assert [(phase.name, phase.output, phase.steps) for phase in result.phases] == [
        ("plan", "a plan", 1),
        ("write", "a text", 2),
    ]
    assert list(result.messages) == [*write.requests[0], Reply(text="a text")]


async def test_a_prompt_can_be_a_function_of_all_that_came_before() -> None:
    seen: list[tuple[Any, tuple[PhaseOutput, ...]]] = []

    def third(info: RunInfo, finished: Sequence[PhaseOutput]) -> str:
        seen.append((info.prompt, tuple(finished)))
        return " + ".join(str(phase.output) for phase in finished)

    last = ScriptedModel("done")
    agent = Agent(
        name="a",
        model=ScriptedModel("x"),
        phases=[Phase(name="p"), Phase(name="p"), Phase(name="last", prompt=third, model=last)],
    )
    await Executor().run(agent, "go")
    assert last.requests == [(User("x + x"),)]
    assert [(prompt, [phase.name for phase in finished]) for prompt, finished in seen] == [("go", ["p", "p"])]


async def test_two_phases_of_one_name_both_run_and_the_latest_output_counts() -> None:
    replies = iter(["first draft", "second draft"])

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        return Reply(text=next(replies))

    last = ScriptedModel("done")
    end = Phase(name="end", prompt="$draft", model=last)
    agent = Agent(name="a", model=model, phases=[Phase(name="draft"), Phase(name="draft"), end])
    result = await Executor().run(agent, "go")
    assert [phase.output for phase in result.phases] == ["first draft", "second draft", "done"]
    assert last.requests == [(User("second draft"),)]


async def test_a_phase_has_its_own_instructions_tools_and_model_or_those_of_the_agent() -> None:
    own, agents = ScriptedModel("x"), ScriptedModel("y")

    @tool(effect="pure")
    async def special() -> None: ...

    agent = Agent(
        name="a",
        model=agents,
        instructions="the agent's",
        tools=[look],
        phases=[
            Phase(name="plain"),
            Phase(name="own", model=own, instructions="its own", tools=[special, "look"]),
            Phase(name="bare", model=own, instructions="", tools=[]),
        ],
    )
    await Executor().run(agent, "go")
    assert agents.requests == [(System("the agent's"), User("go"))]
    assert agents.offered_tools == [(look.schema,)]
    assert own.requests == [(System("its own"), User("go")), (User("go"),)]
    assert own.offered_tools == [(special.schema, look.schema), ()]


# -- bounds -----------------------------------------------------------------------------------------------------------


def looks(times: int, end: Any = "done") -> ScriptedModel:
    return ScriptedModel(*(tool_reply(call(str(n), "look", n=n)) for n in range(times)), end)


async def test_the_bounds_of_a_phase_hold_for_it_alone() -> None:
    bounded = Phase(name="short", bounds=Bounds(max_steps=2), model=looks(1))
    free = Phase(name="long", model=looks(5))
    agent = Agent(name="a", tools=[look], phases=[free, bounded, bounded])
    assert (await Executor().run(agent, "go")).steps == 10
    too_long = Phase(name="short", bounds=Bounds(max_steps=2), model=looks(2))
    with fails_with(StepsExceeded) as raised:
        await Executor().run(Agent(name="a", tools=[look], phases=[free, bounded, too_long]), "go")
    assert raised.value.bound == 2


async def test_the_bounds_of_the_agent_hold_for_all_phases_together() -> None:
    agent = Agent(
        name="a", tools=[look], bounds=Bounds(max_steps=5),
        phases=[Phase(name="one", model=looks(3)), Phase(name="two", model=looks(3), bounds=Bounds(max_steps=50))],
    )  # fmt: skip
    with fails_with(StepsExceeded) as raised:
        await Executor().run(agent, "go")
    assert raised.value.bound == 5


async def test_repeats_are_counted_within_a_phase_by_its_own_bound() -> None:
    same = tool_reply(call("1", "look"))
    patient = Phase(name="p", model=ScriptedModel(same, same, same, "done"), bounds=Bounds(max_repeats=3))
    assert await Executor().run(Agent(name="a", tools=[look], phases=[patient, patient]), "go")
    strict = Phase(name="p", model=ScriptedModel(same, same, same, "done"), bounds=Bounds(max_repeats=2))
    with fails_with(RepeatedToolCalls):
        await Executor().run(Agent(name="a", tools=[look], phases=[strict]), "go")


@pytest.mark.parametrize("durable", [True, False])
async def test_the_time_of_a_phase_begins_with_it(durable: bool) -> None:
    clock = ManualClock()
    executor = SimulatedHost(clock=clock).executor if durable else Executor(clock=clock)

    @tool(effect="pure")
    async def work() -> None:
        await clock.sleep(4 * MINUTE)

    def phase(name: str, bound: timedelta) -> Phase:
        return Phase(
            name=name, bounds=Bounds(max_runtime=bound), model=ScriptedModel(tool_reply(call("1", "work")), name)
        )

    agent = Agent(name="a", tools=[work], phases=[phase("one", 5 * MINUTE), phase("two", 5 * MINUTE)])
    run = asyncio.create_task(executor.run(agent, "go"))
    await clock.advance(20 * MINUTE)
    assert [phase.elapsed for phase in (await run).phases] == [4 * MINUTE, 8 * MINUTE]

    agent = Agent(name="a", tools=[work], phases=[phase("one", 5 * MINUTE), phase("two", 3 * MINUTE)])
    run = asyncio.create_task(executor.run(agent, "go"))
    await clock.advance(20 * MINUTE)
    with fails_with(RuntimeExceeded) as raised:
        await run
    assert raised.value.bound == 3 * MINUTE
    assert clock.waiting == 0


# -- 11: resume -------------------------------------------------------------------------------------------------------


class Stage:
    """A model of a phase that looks twice and answers; may stop or kill the process instead of its n-th reply."""

    def __init__(self, answer: str, dies: SimulatedHost | None = None, *, stop: int | None = None) -> None:
        self._answer, self._dies, self._stop = answer, dies, stop
        self.asked: list[tuple[Message, ...]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        if self._stop == len(self.asked):
            if self._dies is not None:
                await self._dies.crash()
            raise Shutdown("now")
        self.asked.append(tuple(messages))
        looked = sum(isinstance(message, ToolResult) for message in messages)
        usage = Usage(input_tokens=len(messages))
        if looked < 2:
            return tool_reply(call(str(looked), "look", n=looked), usage=usage)
        return Reply(text=self._answer, usage=usage)


def pipeline(*stages: Stage) -> Agent:
    phases = [
        Phase(name="draft", model=stages[0]),
        Phase(name="draft", model=stages[1], prompt="better than $draft"),
        Phase(name="end", model=stages[2], prompt="of $draft"),
    ]
    return Agent(name="a", tools=[look], phases=phases, bounds=Bounds(max_steps=9))


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("phase", [0, 1, 2])
@pytest.mark.parametrize("reply", [0, 1, 2])
async def test_a_pipeline_continues_inside_the_interrupted_phase(phase: int, reply: int, dies: bool) -> None:
    whole = [Stage("one"), Stage("two"), Stage("three")]
    expected = await Executor().run(pipeline(*whole), "go")
    assert expected.steps == 9

    host = SimulatedHost()
    names = ("one", "two", "three")
    before = [Stage(name, host if dies else None, stop=reply if at == phase else None) for at, name in enumerate(names)]
    with pytest.raises(Shutdown):
        await host.executor.run(pipeline(*before), "go", run_id="r")
    [record] = await host.list_records()
    assert record.is_interrupted

    after = [Stage("one"), Stage("two"), Stage("three")]
    result = await SimulatedHost(host.inner).resume(pipeline(*after), "r")
    assert [b.asked + a.asked for b, a in zip(before, after, strict=True)] == [stage.asked for stage in whole]
    assert (result.output, result.steps, result.usage) == (expected.output, 9, expected.usage)
    assert [phase.output for phase in result.phases] == ["one", "two", "three"]
    assert await host.list_records() == []


class StopsAtTheEnd(NullListener):
    async def on_output(self, info: RunInfo, output: Any) -> None:
        raise Shutdown("now")


async def test_a_pipeline_whose_last_phase_was_finished_only_has_to_be_completed() -> None:
    host = SimulatedHost(ports=Ports(listener=StopsAtTheEnd()))
    model = ScriptedModel("done")
    agent = Agent(name="a", model=model, phases=[Phase(name="only")])
    with pytest.raises(Shutdown):
        await host.executor.run(agent, "go", run_id="r")
    result = await SimulatedHost(host.inner).resume(agent, "r")
    assert (result.output, len(model.requests), result.steps) == ("done", 1, 1)


async def test_bounds_of_a_phase_count_on_over_a_resume() -> None:
    host = SimulatedHost()
    bounds = Bounds(max_steps=3)

    def agent(end: Any) -> Agent:
        return Agent(
            name="a", tools=[look],
            phases=[Phase(name="one", model=looks(4)), Phase(name="two", model=looks(2, end), bounds=bounds)],
        )  # fmt: skip

    with pytest.raises(Shutdown):
        await host.executor.run(agent(Shutdown("now")), "go", run_id="r")
    with fails_with(StepsExceeded):
        await SimulatedHost(host.inner).resume(agent(tool_reply(call("9", "look", n=9))), "r")


async def test_a_run_whose_finished_phases_this_agent_does_not_have_is_left_for_one_that_does() -> None:
    host = SimulatedHost()
    with pytest.raises(Shutdown):
        await host.executor.run(pipeline(Stage("one"), Stage("two", stop=0), Stage("x")), "go", run_id="r")
    renamed = Agent(name="a", model=ScriptedModel("never"), phases=[Phase(name="sketch"), Phase(name="draft")])
    with pytest.raises(MissingDefinition, match=r"finished the phases \['draft'\]"):
        await SimulatedHost(host.inner).resume(renamed, "r")
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}
    result = await SimulatedHost(host.inner).resume(pipeline(Stage("never"), Stage("two"), Stage("three")), "r")
    assert result.output == "three"


# -- a deploy while a phase is in progress ----------------------------------------------------------------------------


def stages(*names: str, stop: str = "") -> Agent:
    """A pipeline of phases that answer with their names, in capitals. In the phase `stop` the host shuts down."""
    phases = [
        Phase(name=name, prompt=f"{name} $prompt", model=Stage(name.upper(), stop=1 if name == stop else None))
        for name in names
    ]
    return Agent(name="a", model=Stage("NO PHASE"), tools=[look], phases=phases)


async def interrupted(agent: Agent) -> SimulatedHost:
    host = SimulatedHost()
    with pytest.raises(Shutdown):
        await host.executor.run(agent, "it", run_id="r")
    return host


async def without_phase_name(host: SimulatedHost) -> None:
    """Make of the run what a holdfast that did not keep the name of the current phase would have saved."""
    await host.checkpoints.open()
    claim = await host.inner.claim("r", host.checkpoints.worker_id)
    progress = msgspec.json.decode((await host.inner.load("r")).record.progress)
    progress.pop("phase", None)
    ending = Release(status=RunStatus.INTERRUPTED, progress=msgspec.json.encode(progress))
    await host.inner.release(claim, ending)


@pytest.mark.parametrize(
    ("stop", "after"),
    [
        ("collect", []),
        ("collect", ["gather", "sum up", "publish"]),
        ("collect", ["prepare", "collect", "sum up", "publish"]),
        ("sum up", ["collect", "publish"]),
        ("sum up", ["collect", "review", "sum up", "publish"]),
        ("sum up", ["collect"]),
        ("sum up", []),
    ],
    ids=str,
)
async def test_a_run_in_a_phase_that_this_agent_does_not_have_there_is_left(stop: str, after: list[str]) -> None:
    before = ("collect", "sum up", "publish")
    host = await interrupted(stages(*before, stop=stop))
    saved = await host.inner.load("r")
    with pytest.raises(MissingDefinition, match=rf"is in '{stop}', but agent a has"):
        await SimulatedHost(host.inner).resume(stages(*after), "r")
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}
    assert (await host.inner.load("r")).entries == saved.entries
    result = await SimulatedHost(host.inner).resume(stages(*before), "r")
    assert [phase.output for phase in result.phases] == ["COLLECT", "SUM UP", "PUBLISH"]


async def test_phases_after_the_one_in_progress_may_change() -> None:
    host = await interrupted(stages("collect", "sum up", "publish", stop="sum up"))
    result = await SimulatedHost(host.inner).resume(stages("collect", "sum up", "review", "print"), "r")
    assert [phase.output for phase in result.phases] == ["COLLECT", "SUM UP", "REVIEW", "PRINT"]


def unsaid(info: RunInfo, finished: Sequence[PhaseOutput]) -> str:
    raise Shutdown("before anything was said")


@pytest.mark.parametrize("finished", [[], ["collect"]], ids=str)
async def test_a_phase_in_which_nothing_was_said_yet_may_become_another(finished: list[str]) -> None:
    before = [Phase(name=name) for name in finished]
    agent = Agent(name="a", model=ScriptedModel("COLLECT"), phases=[*before, Phase(name="sum up", prompt=unsaid)])
    host = await interrupted(agent)
    result = await SimulatedHost(host.inner).resume(stages(*finished, "review", "publish"), "r")
    assert [phase.name for phase in result.phases] == [*finished, "review", "publish"]


async def test_a_phase_in_which_nothing_was_said_yet_may_become_a_conversation_without_phases() -> None:
    host = await interrupted(
        Agent(name="a", model=ScriptedModel("never"), phases=[Phase(name="sum up", prompt=unsaid)])
    )
    plain = Agent(name="a", model=Stage("DONE", stop=1), tools=[look])
    with pytest.raises(Shutdown):
        await SimulatedHost(host.inner).resume(plain, "r")
    assert (await SimulatedHost(host.inner).resume(stages(), "r")).output == "NO PHASE"


@pytest.mark.parametrize("after", [["collect", "sum up", "publish"], ["collect", "review", "publish"]], ids=str)
async def test_a_run_that_was_saved_without_the_name_of_its_phase_continues(after: list[str]) -> None:
    host = await interrupted(stages("collect", "sum up", "publish", stop="sum up"))
    await without_phase_name(host)
    result = await SimulatedHost(host.inner).resume(stages(*after), "r")
    assert [phase.output for phase in result.phases] == ["COLLECT", after[1].upper(), "PUBLISH"]


@pytest.mark.parametrize("after", [[], ["collect"]], ids=str)
async def test_without_the_name_it_is_still_known_that_a_further_phase_is_in_progress(after: list[str]) -> None:
    host = await interrupted(stages("collect", "sum up", stop="sum up"))
    await without_phase_name(host)
    with pytest.raises(MissingDefinition, match=r"finished the phases \['collect'\]"):
        await SimulatedHost(host.inner).resume(stages(*after), "r")


async def test_a_conversation_without_phases_continues_as_the_first_of_those_that_the_agent_has_now() -> None:
    host = await interrupted(Agent(name="a", model=Stage("never", stop=1), tools=[look]))
    result = await SimulatedHost(host.inner).resume(stages("write", "review"), "r")
    assert [phase.output for phase in result.phases] == ["WRITE", "REVIEW"]
    assert result.steps == 6  # three for each: what was done before counts for the first


class LoopOfObjects(NativeLoop):
    """A loop whose outputs no store can keep."""

    def dump_output(self, output: Any) -> Any:
        return to_json_value(object(), "the output")


async def test_an_output_that_cannot_be_stored_is_refused_where_it_was_made() -> None:
    host = SimulatedHost()
    agent = Agent(name="a", phases=[Phase(name="one", model=ScriptedModel("done"))], loop=LoopOfObjects())
    with fails_with(PayloadError):
        await host.executor.run(agent, "go", run_id="r")
    assert await host.get_statuses() == {}
