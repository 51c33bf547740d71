"""Observers see what an attempt does, one channel for all, and cannot harm the run."""

import logging
from collections.abc import Iterable
from datetime import timedelta

import pytest
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, Retry, current_call, tool
from holdfast.core.execution.executor import Executor
from holdfast.core.observer import (
    PUBLIC_EVENTS,
    AttemptControl,
    AttemptEnded,
    AttemptEnding,
    AttemptStarted,
    CallEnded,
    CallStarted,
    ModelAsked,
    ObservedEvent,
    ReplyReceived,
    Retried,
    Saved,
    StepEnded,
)
from holdfast.core.ports import Ports
from holdfast.core.run.run_events import ToolCalled
from holdfast.core.run.status import AttemptEnd

KERNEL_EVENTS = (
    AttemptStarted,
    AttemptEnding,
    AttemptEnded,
    ModelAsked,
    ReplyReceived,
    CallStarted,
    CallEnded,
    Retried,
    StepEnded,
    Saved,
)


class Recording:
    """An observer of every attempt, which raises at a kind of event if a test asks for it."""

    def __init__(self, kinds: Iterable[type], raises_at: type | None = None) -> None:
        self.kinds, self._raises_at = frozenset(kinds), raises_at
        self.events: list[ObservedEvent] = []
        self.attempts: list[AttemptControl] = []

    def begin(self, attempt: AttemptControl, max_runtime: timedelta | None = None) -> "Recording":
        self.attempts.append(attempt)
        return self

    def observe(self, event: ObservedEvent) -> None:
        self.events.append(event)
        if type(event) is self._raises_at:
            raise ValueError("broken")

    @property
    def names(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


@tool
async def look() -> str:
    return "seen"


def looking() -> Agent:
    return Agent(name="a", model=ScriptedModel(tool_reply(call("1", "look")), "done"), tools=[look])


async def test_an_observer_gets_the_events_of_an_attempt_in_their_order() -> None:
    seen = Recording(KERNEL_EVENTS)
    await SimulatedHost(ports=Ports(observers=(seen,))).executor.run(looking(), "go")
    step = ["ModelAsked", "ReplyReceived"]
    assert seen.names == [
        "AttemptStarted",
        "Saved",  # the prompt, before the model is asked
        *step,
        "Saved",  # the reply, before its `once` call
        "CallStarted",
        "CallEnded",
        "Saved",
        "StepEnded",
        *step,
        "Saved",
        "StepEnded",
        "AttemptEnding",
        "AttemptEnded",
    ]


async def test_an_observer_gets_only_the_kinds_that_it_wants() -> None:
    calls, ends = Recording([ToolCalled]), Recording([AttemptEnded])
    await Executor(Ports(observers=(calls, ends))).run(looking(), "go")
    assert (calls.names, ends.names) == (["ToolCalled"], ["AttemptEnded"])


async def test_an_attempt_tells_its_observer_what_it_is() -> None:
    seen = Recording([AttemptEnded])
    await SimulatedHost(ports=Ports(observers=(seen,))).executor.run(looking(), "go", run_id="r")
    (attempt,) = seen.attempts
    assert (attempt.info.run_id, attempt.resumed, attempt.is_child, attempt.taken_from) == ("r", False, False, None)
    assert attempt.checkpointer is not None
    (ended,) = seen.events
    assert ended == AttemptEnded(end=AttemptEnd.DONE)


async def test_the_end_of_a_call_says_how_it_ended() -> None:
    @tool(effect="idempotent", retry=Retry(max_tries=2, initial_delay=timedelta(milliseconds=1)))
    async def breaks() -> str:
        raise ConnectionError("no")

    seen = Recording([CallEnded, Retried])
    agent = Agent(
        name="a",
        model=ScriptedModel(tool_reply(call("1", "breaks")), tool_reply(call("2", "look")), "done"),
        tools=[breaks, look],
    )
    await Executor(Ports(observers=(seen,))).run(agent, "go")
    assert [event.outcome for event in seen.events if isinstance(event, CallEnded)] == ["error", "done"]
    (retried,) = (event for event in seen.events if isinstance(event, Retried))
    assert (retried.tool, retried.call_id, retried.failed_tries, type(retried.error)) == (
        "breaks",
        "1",
        1,
        ConnectionError,
    )


async def test_an_observer_that_raises_is_logged_and_gets_only_the_end(caplog: pytest.LogCaptureFixture) -> None:
    broken, sound = Recording(KERNEL_EVENTS, raises_at=Saved), Recording(KERNEL_EVENTS)
    host = SimulatedHost(ports=Ports(observers=(broken, sound)))
    with caplog.at_level(logging.ERROR, "holdfast.run"):
        assert (await host.executor.run(looking(), "go", run_id="r")).output == "done"
    assert broken.names == ["AttemptStarted", "Saved", "AttemptEnded"]
    assert sound.names.count("StepEnded") == 2
    assert ["its observer Recording failed" in record.getMessage() for record in caplog.records] == [True]


async def test_an_observer_that_raised_sees_the_next_attempt() -> None:
    broken = Recording([StepEnded], raises_at=StepEnded)
    executor = Executor(Ports(observers=(broken,)))
    for _ in range(2):
        await executor.run(looking(), "go")
    assert broken.names == ["StepEnded", "StepEnded"]


async def test_a_critics_watch_sees_the_public_events_of_children_and_ends_with_its_own_attempt() -> None:
    child = Agent(name="child", model=ScriptedModel(tool_reply(call("c", "look")), "done"), tools=[look])

    @tool(effect="idempotent")
    async def delegate() -> str:
        return str((await current_call().run(child, "go")).output)

    class Watching(Recording):
        def begin(self, attempt: AttemptControl, max_runtime: timedelta | None = None) -> "Recording":
            return super().begin(attempt) if not attempt.is_child else Recording(())

    watch = Watching([*PUBLIC_EVENTS, StepEnded, AttemptEnded])
    parent = Agent(name="parent", model=ScriptedModel(tool_reply(call("p", "delegate")), "done"), tools=[delegate])
    await Executor(Ports(critic=watch)).run(parent, "go")
    called = [event.tool for event in watch.events if isinstance(event, ToolCalled)]
    assert called == ["delegate", "look"]
    assert watch.names.count("StepEnded") == 2, "those of the child are not its own"
    assert watch.names.count("AttemptEnded") == 1
    assert watch.names[-1] == "AttemptEnded"
