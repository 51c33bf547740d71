"""A critic on a clock that only the test moves."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from datetime import timedelta

import pytest
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, App, Bounds, Reply, User, current_call, tool
from holdfast.batteries.critic import Critic, CriticAction, CriticError, IdleRun
from holdfast.core import Message, Ports
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import RunKilled, RuntimeExceeded
from holdfast.core.observer import AttemptControl, Observer
from holdfast.core.run.info import RunInfo
from holdfast.stores.memory import MemoryStore
from holdfast.testing import ManualClock

SOFT = timedelta(seconds=10)


class Escalation:
    """An escalator that returns the given answers and records the runs it was asked about."""

    def __init__(self, *answers: CriticAction | Exception | None) -> None:
        self._answers = list(answers)
        self.asked: list[IdleRun] = []

    async def __call__(self, idle_run: IdleRun) -> CriticAction | None:
        self.asked.append(idle_run)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


class Hanging:
    """A model that replies when the test says so."""

    def __init__(self) -> None:
        self.replies: asyncio.Queue[Reply] = asyncio.Queue()
        self.seen: list[tuple[Message, ...]] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[object]) -> Reply:
        self.seen.append(tuple(messages))
        return await self.replies.get()


class NeverReady:
    """A provider of tools that does not answer: the run makes no step."""

    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        await asyncio.Event().wait()
        return ()


@tool(effect="pure")
async def look(number: int = 0) -> str:
    return "nothing new"


def agent_of(model: Hanging, max_runtime: timedelta | None = SOFT) -> Agent:
    return Agent(name="a", model=model, tools=[look], bounds=Bounds(max_runtime=max_runtime))


def make_host(clock: ManualClock, critic: Critic, store: MemoryStore | None = None) -> SimulatedHost:
    return SimulatedHost(store, clock=clock, ports=Ports(critic=critic))


async def test_an_escalator_is_asked_once_per_idle_period_and_again_after_activity() -> None:
    clock, model, escalation = ManualClock(), Hanging(), Escalation()
    unhandled: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
    run = asyncio.create_task(make_host(clock, Critic(escalation, clock=clock)).executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 0.9)
    assert escalation.asked == []
    await clock.advance(SOFT * 1.6)
    assert len(escalation.asked) == 1
    assert escalation.asked[0].idle_for == SOFT
    model.replies.put_nowait(tool_reply(call("c1", "look")))
    await clock.advance(SOFT * 1.1)
    assert len(escalation.asked) == 2
    model.replies.put_nowait(Reply(text="done"))
    assert (await run).output == "done"
    assert clock.waiting == 0
    del run
    gc.collect()
    assert unhandled == [], "the escalator has no opinion, which is no error"


async def test_an_escalator_that_still_thinks_is_cancelled_by_the_next_idle_period_and_by_the_end() -> None:
    clock, model, thoughts = ManualClock(), Hanging(), list[str]()

    async def thinks(idle_run: IdleRun) -> CriticAction | None:
        thoughts.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            thoughts.append("cancelled")
            raise
        return None

    run = asyncio.create_task(make_host(clock, Critic(thinks, clock=clock)).executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 1.1)
    model.replies.put_nowait(tool_reply(call("c1", "look")))
    await clock.advance(SOFT * 1.1)
    assert thoughts == ["begun", "cancelled", "begun"]
    model.replies.put_nowait(Reply(text="done"))
    await run
    await clock.advance(SOFT)
    assert thoughts == ["begun", "cancelled", "begun", "cancelled"]


async def test_each_turn_of_a_conversation_is_watched_from_its_beginning_and_may_be_extended() -> None:
    clock, model = ManualClock(), Hanging()
    escalation = Escalation(CriticAction(extend=SOFT), CriticAction(extend=SOFT))
    critic = Critic(escalation, backstop=2, clock=clock)
    async with App([agent_of(model)], "memory:", critic=critic, clock=clock) as app:
        chat = app.conversation("a", "ann")
        for number, text in enumerate(("one", "two"), 1):
            turn = asyncio.create_task(chat.send(text))
            await clock.advance(SOFT * 1.2)
            assert [idle_run.extensions for idle_run in escalation.asked] == [0] * number
            await clock.advance(SOFT * 1.3)
            model.replies.put_nowait(Reply(text=f"answer to {text}"))
            assert (await turn).output == f"answer to {text}"


async def test_the_idle_time_of_a_resumed_run_continues_at_its_last_activity() -> None:
    clock, store, model, escalation = ManualClock(), MemoryStore(), Hanging(), Escalation()
    one = make_host(clock, Critic(Escalation(), clock=clock), store)
    run = asyncio.create_task(one.executor.run(agent_of(model), "go", run_id="r"))
    await clock.advance(SOFT * 0.8)
    model.replies.put_nowait(tool_reply(call("c1", "look")))
    await clock.advance(SOFT * 0.1)
    await one.crash()
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    two = make_host(clock, Critic(escalation, clock=clock), store)
    later = Hanging()
    resumed = asyncio.create_task(two.resume(agent_of(later), "r"))
    await clock.advance(SOFT * 0.9)
    assert escalation.asked == [], "its last activity was at 0.8"
    await clock.advance(SOFT * 0.2)
    assert len(escalation.asked) == 1
    later.replies.put_nowait(Reply(text="done"))
    await resumed


async def test_an_idle_run_is_killed_at_the_backstop_and_fails_with_run_killed() -> None:
    clock, model = ManualClock(), Hanging()
    one = make_host(clock, Critic(Escalation(), backstop=3, clock=clock))
    run = asyncio.create_task(one.executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 2.9)
    assert not run.done()
    await clock.advance(SOFT * 0.2)
    with fails_with(RunKilled, match="idle"):
        await run
    assert await one.list_records() == []


async def test_activity_moves_the_backstop_away() -> None:
    clock, model = ManualClock(), Hanging()
    critic = Critic(Escalation(), backstop=2, clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(agent_of(model), "go"))
    for number in range(5):
        await clock.advance(SOFT * 1.5)
        model.replies.put_nowait(tool_reply(call(f"c{number}", "look", number=number)))
    await clock.advance(SOFT * 1.5)
    model.replies.put_nowait(Reply(text="alive"))
    assert (await run).output == "alive"


@pytest.mark.parametrize("max_runtime", [None, SOFT])
async def test_activity_of_a_child_counts_as_activity_of_its_parents(max_runtime: timedelta | None) -> None:
    clock, model = ManualClock(), Hanging()
    child = agent_of(model, max_runtime)

    @tool(effect="idempotent")
    async def delegate() -> str:
        below = middle if current_call().info.agent_name == "top" else child
        return str((await current_call().run(below, "go")).output)

    bounds = Bounds(max_runtime=SOFT)
    middle = Agent(
        name="middle", model=ScriptedModel(tool_reply(call("c", "delegate")), "done"), tools=[delegate], bounds=bounds
    )
    top = Agent(
        name="top", model=ScriptedModel(tool_reply(call("c", "delegate")), "done"), tools=[delegate], bounds=bounds
    )
    critic = Critic(Escalation(), backstop=2, clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(top, "go"))
    for number in range(5):
        await clock.advance(SOFT * 1.5)
        model.replies.put_nowait(tool_reply(call(f"c{number}", "look", number=number)))
    await clock.advance(SOFT * 1.5)
    model.replies.put_nowait(Reply(text="alive"))
    assert (await run).output == "done"


async def test_the_ceiling_ends_a_run_that_is_not_idle_too() -> None:
    clock, model = ManualClock(), Hanging()
    critic = Critic(Escalation(), ceiling=SOFT * 4, clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(agent_of(model), "go"))
    for number in range(7):
        await clock.advance(SOFT * 0.5)
        model.replies.put_nowait(tool_reply(call(f"c{number}", "look", number=number)))
    await clock.advance(SOFT)
    with fails_with(RunKilled, match="ceiling"):
        await run


async def test_the_default_escalator_extends_once_per_run_and_not_once_per_process() -> None:
    clock, store = ManualClock(), MemoryStore()
    first_model, second_model = Hanging(), Hanging()
    one = make_host(clock, Critic(backstop=2, clock=clock), store)
    task = asyncio.create_task(one.executor.run(agent_of(first_model), "go", run_id="r"))
    await clock.advance(SOFT * 2.5)
    assert not task.done(), "the extension moved the backstop from two soft timeouts to three"
    await one.crash()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    two = make_host(clock, Critic(backstop=2, clock=clock), store)
    resumed = asyncio.create_task(two.resume(agent_of(second_model), "r"))
    await clock.advance(SOFT * 2.9)
    assert not resumed.done(), "what was extended in the first attempt still counts"
    await clock.advance(SOFT * 0.3)
    with fails_with(RunKilled):
        await resumed


async def test_idle_time_before_a_resume_does_not_count_and_neither_does_what_an_older_version_saved_of_it() -> None:
    clock, store, escalation = ManualClock(), MemoryStore(), Escalation()
    one = make_host(clock, Critic(Escalation(), clock=clock), store)
    task = asyncio.create_task(one.executor.run(agent_of(Hanging()), "go", run_id="r"))
    await clock.advance(SOFT * 0.9)
    attempt = one.executor.get_attempt("r")
    assert attempt is not None
    attempt.state.set_port_data("critic", {"active_at": -100.0, "extensions": 0, "extended": 0.0})
    shutdown = asyncio.create_task(one.executor.shutdown(timedelta(0)))
    await clock.advance(timedelta(0))
    await asyncio.gather(task, return_exceptions=True)
    await shutdown

    ports = Ports(critic=Critic(escalation, clock=clock), extra_tools=NeverReady())
    resumed = asyncio.create_task(SimulatedHost(store, clock=clock, ports=ports).resume(agent_of(Hanging()), "r"))
    await clock.advance(SOFT * 0.9)
    assert escalation.asked == []
    assert not resumed.done()
    await clock.advance(SOFT * 0.2)
    assert [each.idle_for for each in escalation.asked] == [SOFT]
    resumed.cancel()
    await asyncio.gather(resumed, return_exceptions=True)


async def test_time_between_attempts_does_not_count() -> None:
    clock, store = ManualClock(), MemoryStore()
    one = make_host(clock, Critic(Escalation(), ceiling=SOFT * 3, clock=clock), store)
    model = Hanging()
    task = asyncio.create_task(one.executor.run(agent_of(model), "go", run_id="r"))
    await clock.advance(SOFT * 1.5)
    shutdown = asyncio.create_task(one.executor.shutdown(timedelta(0)))
    await clock.advance(timedelta(seconds=1))
    await asyncio.gather(task, return_exceptions=True)
    await shutdown
    await clock.advance(timedelta(days=1))

    later = Hanging()
    two = make_host(clock, Critic(Escalation(), ceiling=SOFT * 3, clock=clock), store)
    resumed = asyncio.create_task(two.resume(agent_of(later), "r"))
    await clock.advance(SOFT * 1.0)
    assert not resumed.done()
    await clock.advance(SOFT * 0.7)
    with fails_with(RunKilled, match="ceiling"):
        await resumed


async def test_an_extension_survives_the_process_that_was_given_it() -> None:
    clock, store = ManualClock(), MemoryStore()
    one = make_host(clock, Critic(Escalation(CriticAction(extend=SOFT)), backstop=2, clock=clock), store)
    run = asyncio.create_task(one.executor.run(agent_of(Hanging()), "go", run_id="r"))
    await clock.advance(SOFT * 1.1)
    await one.crash()

    two = make_host(clock, Critic(Escalation(), backstop=2, clock=clock), store)
    resumed = asyncio.create_task(two.resume(agent_of(Hanging()), "r"))
    await clock.advance(SOFT * 2.9)
    assert not resumed.done()
    await clock.advance(SOFT * 0.2)
    with fails_with(RunKilled, match="idle"):
        await resumed
    run.cancel()


async def test_an_extension_moves_the_backstop_of_the_same_idle_period() -> None:
    clock = ManualClock()
    critic = Critic(Escalation(CriticAction(extend=SOFT)), backstop=2, clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(agent_of(Hanging()), "go"))
    await clock.advance(SOFT * 2.9)
    assert not run.done()
    await clock.advance(SOFT * 0.2)
    with fails_with(RunKilled, match=r"it was idle for 30\.0 s"):
        await run


async def test_only_a_decision_that_extends_counts_as_an_extension() -> None:
    clock, model = ManualClock(), Hanging()
    escalation = Escalation(CriticAction(nudge="hurry"), CriticAction(extend=SOFT * 5), CriticAction())
    critic = Critic(escalation, backstop=2, clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(agent_of(model), "go"))
    for number in range(3):
        await clock.advance(SOFT * 1.1)
        model.replies.put_nowait(tool_reply(call(f"c{number}", "look", number=number)))
        await clock.advance(timedelta(0))
    assert [idle_run.extensions for idle_run in escalation.asked] == [0, 0, 1]
    assert [idle_run.until_kill for idle_run in escalation.asked] == [SOFT, SOFT, SOFT * 6]
    assert {idle_run.soft_timeout for idle_run in escalation.asked} == {SOFT}
    await clock.advance(SOFT * 6.9)
    assert not run.done(), "the backstop comes after two soft timeouts and the extension"
    await clock.advance(SOFT * 0.2)
    with fails_with(RunKilled, match="it was idle for 70"):
        await run


async def test_a_nudge_is_put_in_front_of_the_next_step() -> None:
    clock, model = ManualClock(), Hanging()
    critic = Critic(Escalation(CriticAction(nudge="Are you there?")), clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 1.1)
    model.replies.put_nowait(tool_reply(call("c1", "look")))
    model.replies.put_nowait(Reply(text="yes"))
    await run
    assert model.seen[1][-1] == User("Are you there?")


async def test_a_nudge_that_cannot_be_stored_is_logged_and_the_rest_of_the_decision_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, model = ManualClock(), Hanging()
    critic = Critic(Escalation(CriticAction(nudge="half a pair \ud83d", extend=SOFT)), backstop=2, clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 2.5)
    assert "cannot be stored" in caplog.text
    model.replies.put_nowait(Reply(text="yes"))
    assert (await run).output == "yes"


async def test_a_kill_with_a_nudge_is_a_kill() -> None:
    clock, model = ManualClock(), Hanging()
    critic = Critic(Escalation(CriticAction(kill=True, nudge="hello?", extend=SOFT, reason="hopeless")), clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 1.1)
    with fails_with(RunKilled, match="hopeless"):
        await run


async def test_the_next_escalator_is_asked_if_one_says_so() -> None:
    clock, model = ManualClock(), Hanging()
    first, third = Escalation(CriticAction(escalate=True)), Escalation()
    second = Escalation(CriticAction(kill=True, escalate=True))
    run = asyncio.create_task(
        make_host(clock, Critic(first, second, third, clock=clock)).executor.run(agent_of(model), "go")
    )
    await clock.advance(SOFT * 1.1)
    with fails_with(RunKilled):
        await run
    assert (len(first.asked), len(second.asked), len(third.asked)) == (1, 1, 0)


async def test_no_other_escalator_is_asked_if_one_does_not_say_so() -> None:
    clock, model = ManualClock(), Hanging()
    first, second = Escalation(CriticAction(extend=SOFT)), Escalation(CriticAction(kill=True))
    host = make_host(clock, Critic(first, second, clock=clock))
    run = asyncio.create_task(host.executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 1.1)
    model.replies.put_nowait(Reply(text="done"))
    assert (await run).output == "done"
    assert (len(first.asked), len(second.asked)) == (1, 0)


async def test_an_escalator_that_raises_is_logged_and_the_deadline_stands(caplog: pytest.LogCaptureFixture) -> None:
    clock, model = ManualClock(), Hanging()
    critic = Critic(Escalation(ValueError("no idea")), backstop=2, clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 1.5)
    assert "no idea" in caplog.text
    assert not run.done()
    await clock.advance(SOFT * 0.6)
    with fails_with(RunKilled):
        await run


async def test_a_decision_about_an_earlier_idle_period_is_ignored() -> None:
    clock, model, asked, answers = ManualClock(), Hanging(), list[IdleRun](), asyncio.Queue[CriticAction]()

    async def thinks(idle_run: IdleRun) -> CriticAction | None:
        asked.append(idle_run)
        return await answers.get()

    run = asyncio.create_task(make_host(clock, Critic(thinks, clock=clock)).executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 1.1)
    model.replies.put_nowait(tool_reply(call("c1", "look")))
    await clock.advance(SOFT * 0.1)
    answers.put_nowait(CriticAction(kill=True))
    await clock.advance(SOFT * 0.1)
    assert not run.done()
    await clock.advance(SOFT)
    assert len(asked) == 2
    answers.put_nowait(CriticAction(kill=True, reason="again"))
    with fails_with(RunKilled, match="again"):
        await run


async def test_an_escalator_that_answers_nonsense_is_logged_and_the_deadline_stands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, model = ManualClock(), Hanging()

    async def nonsense(idle_run: IdleRun) -> CriticAction | None:
        return "kill"  # type: ignore[return-value]

    critic = Critic(nonsense, backstop=2, clock=clock)
    run = asyncio.create_task(make_host(clock, critic).executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 1.5)
    assert "returned 'kill'" in caplog.text
    assert not run.done()
    await clock.advance(SOFT * 0.6)
    with fails_with(RunKilled):
        await run


async def test_an_escalator_that_hangs_does_not_hold_the_backstop() -> None:
    clock, model = ManualClock(), Hanging()

    async def hangs(idle_run: IdleRun) -> CriticAction | None:
        await asyncio.Event().wait()
        return CriticAction(extend=SOFT * 100)

    run = asyncio.create_task(
        make_host(clock, Critic(hangs, backstop=2, clock=clock)).executor.run(agent_of(model), "go")
    )
    await clock.advance(SOFT * 2.1)
    with fails_with(RunKilled):
        await run


def test_a_critic_watches_in_a_second_event_loop_as_in_the_first() -> None:
    critic = Critic(Escalation(), soft_timeout=timedelta(milliseconds=20), backstop=2)
    quick = Agent(name="a", model=ScriptedModel("done"))
    assert asyncio.run(SimulatedHost(ports=Ports(critic=critic)).executor.run(quick, "go")).output == "done"
    hung = SimulatedHost(ports=Ports(critic=critic)).executor.run(agent_of(Hanging()), "go")
    with fails_with(RunKilled, match="idle"):
        asyncio.run(asyncio.wait_for(hung, 60))


async def test_without_a_soft_timeout_there_is_no_watch() -> None:
    clock, model, escalation = ManualClock(), Hanging(), Escalation()
    run = asyncio.create_task(
        make_host(clock, Critic(escalation, clock=clock)).executor.run(agent_of(model, None), "go")
    )
    await clock.advance(timedelta(days=2))
    model.replies.put_nowait(Reply(text="at last"))
    assert (await run).output == "at last"
    assert escalation.asked == []


async def test_without_a_critic_the_runtime_is_the_hard_end() -> None:
    clock, model = ManualClock(), Hanging()
    run = asyncio.create_task(SimulatedHost(clock=clock).executor.run(agent_of(model), "go"))
    await clock.advance(SOFT * 1.01)
    with fails_with(RuntimeExceeded):
        await run


async def test_a_thousand_runs_are_watched_by_a_timer_each_and_leave_none_behind() -> None:
    clock = ManualClock()
    critic = Critic(Escalation(), clock=clock)
    one = SimulatedHost(clock=clock, ports=Ports(critic=critic))
    models = [Hanging() for _ in range(1000)]
    runs = [asyncio.create_task(one.executor.run(agent_of(model), "go")) for model in models]
    await clock.advance(timedelta(seconds=1))
    assert clock.waiting == 1000
    for model in models:
        model.replies.put_nowait(Reply(text="done"))
    await asyncio.gather(*runs)
    assert clock.waiting == 0


async def test_a_run_that_ended_is_not_watched_any_more() -> None:
    clock, escalation = ManualClock(), Escalation(CriticAction(kill=True))
    agent = Agent(name="a", model=ScriptedModel("done"), bounds=Bounds(max_runtime=SOFT))
    await make_host(clock, Critic(escalation, clock=clock)).executor.run(agent, "go")
    await clock.advance(SOFT * 10)
    assert escalation.asked == []


async def test_a_run_that_is_interrupted_while_it_is_idle_is_not_watched_any_more() -> None:
    clock, escalation = ManualClock(), Escalation()
    host = make_host(clock, Critic(escalation, clock=clock))
    run = asyncio.create_task(host.executor.run(agent_of(Hanging()), "go"))
    await clock.advance(SOFT * 1.1)
    assert len(escalation.asked) == 1
    shutdown = asyncio.create_task(host.executor.shutdown(timedelta(0)))
    await clock.advance(timedelta(seconds=1))
    await asyncio.gather(run, shutdown, return_exceptions=True)
    assert clock.waiting == 0


async def test_nothing_of_an_ended_run_stays_in_memory() -> None:
    clock, kept = ManualClock(), list[weakref.ref[AttemptControl]]()

    class Watching(Critic):
        def begin(self, attempt: AttemptControl, max_runtime: timedelta | None) -> Observer | None:
            kept.append(weakref.ref(attempt))
            return super().begin(attempt, max_runtime)

    agent = Agent(name="a", model=ScriptedModel("done"), bounds=Bounds(max_runtime=SOFT))
    one = SimulatedHost(clock=clock, ports=Ports(critic=Watching(Escalation(), clock=clock)))
    for _ in range(300):
        await one.executor.run(agent, "go")
    gc.collect()
    assert [ref for ref in kept if ref() is not None] == []


@pytest.mark.parametrize(
    "options", [{"backstop": 1.0}, {"soft_timeout": timedelta(0)}, {"ceiling": timedelta(seconds=-1)}]
)
def test_invalid_durations_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(CriticError):
        Critic(**options)  # type: ignore[arg-type]
