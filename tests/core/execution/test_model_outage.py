"""A provider's outage ends no run: model calls are retried, and then the run is interrupted and waits."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.core.null_listener import NullListener
from tests.failed_runs import fails_with
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.simulated_host import SimulatedHost

from holdfast import Agent, Phase, Reply, Retry
from holdfast.checkpoint.codec import decode
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.core.agents.tool import ToolSchema, tool
from holdfast.core.errors import DefinitionError, RunInterrupted, Shutdown
from holdfast.core.execution.executor import Executor
from holdfast.core.execution.model_calls import get_outage_delay
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message
from holdfast.core.run.run_events import Event, RetryScheduled
from holdfast.core.run.state import RetryState
from holdfast.errors import ModelUnavailable
from holdfast.testing.manual_clock import ManualClock

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
#: Pauses of 1, 2 and 4 seconds.
FOUR = Retry(max_tries=4, jitter=0)


class Busy(Exception):
    status_code = 429


class FlakyModel:
    """Raises the errors one after the other, then replies."""

    def __init__(self, *errors: Exception, replies: Sequence[Reply | str] = ("done",)) -> None:
        self.errors, self.calls, self._script = list(errors), 0, ScriptedModel(*replies)

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return await self._script(messages, tools)


class Events(NullListener):
    def __init__(self) -> None:
        self.retries: list[RetryScheduled] = []

    async def on_event(self, info: RunInfo, event: Event) -> None:
        if isinstance(event, RetryScheduled):
            self.retries.append(event)


def read_retry(record: RunRecord) -> RetryState:
    return decode(record.progress, Progress).retry


async def test_a_call_that_fails_for_a_while_is_repeated() -> None:
    clock, events = ManualClock(), Events()
    model = FlakyModel(Busy("slow down"), ConnectionResetError(), TimeoutError("late"))
    agent = Agent(name="a", model=model, retry=FOUR)
    run = asyncio.create_task(Executor(Ports(listener=events), clock=clock).run(agent, "go"))
    for calls, pause in ((1, 1), (2, 2), (3, 4)):
        await clock.advance(pause * SECOND - timedelta(milliseconds=1))
        assert model.calls == calls
        await clock.advance(timedelta(milliseconds=1))
    result = await run
    assert (result.output, result.usage.requests, result.steps, model.calls) == ("done", 1, 1, 4)
    assert [(each.step, each.attempt, each.delay, each.error) for each in events.retries] == [
        (1, 1, SECOND, "Busy: slow down"),
        (1, 2, 2 * SECOND, "ConnectionResetError: "),
        (1, 3, 4 * SECOND, "TimeoutError: late"),
    ]


async def test_every_call_has_all_its_attempts() -> None:
    clock = ManualClock()

    @tool(effect="pure")
    async def look() -> str:
        model.errors += [Busy(), Busy()]
        return "seen"

    model = FlakyModel(Busy(), Busy(), replies=[tool_reply(call("1", "look")), "done"])
    agent = Agent(name="a", model=model, tools=[look], retry=Retry(max_tries=3, jitter=0))
    run = asyncio.create_task(Executor(clock=clock).run(agent, "go"))
    await clock.advance(MINUTE)
    assert (await run).output == "done"
    assert model.calls == 6


async def test_the_defaults_retry_without_being_asked() -> None:
    clock, model = ManualClock(), FlakyModel(*[Busy()] * 4)
    run = asyncio.create_task(Executor(clock=clock).run(Agent(name="a", model=model), "go"))
    await clock.advance(2 * MINUTE)
    assert (await run).output == "done"


async def test_a_phase_retries_as_its_agent_says() -> None:
    clock, model = ManualClock(), FlakyModel(Busy())
    agent = Agent(name="a", phases=[Phase(name="p", model=model)], retry=Retry(max_tries=2))
    run = asyncio.create_task(Executor(clock=clock).run(agent, "go"))
    await clock.advance(MINUTE)
    assert (await run).output == "done"


async def test_the_provider_says_when_to_come_back() -> None:
    clock, model = ManualClock(), FlakyModel(ModelUnavailable("away", 50 * SECOND))
    run = asyncio.create_task(Executor(clock=clock).run(Agent(name="a", model=model, retry=FOUR), "go"))
    await clock.advance(49 * SECOND)
    assert model.calls == 1
    await clock.advance(SECOND)
    assert (await run).output == "done"


async def test_when_the_attempts_are_used_up_the_run_waits_and_later_continues() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    delays = []
    for outage in range(1, 4):
        agent = Agent(name="a", model=FlakyModel(*[Busy("full")] * 4), retry=FOUR)
        execution = host.executor.run(agent, "go", run_id="r") if outage == 1 else host.resume(agent, "r")
        run = asyncio.create_task(execution)
        await clock.advance(7 * SECOND)
        with pytest.raises(ModelUnavailable, match=r"r waits for its model after 4 attempts.*Busy: full") as raised:
            await run
        assert isinstance(raised.value, RunInterrupted)
        assert isinstance(raised.value.__cause__, Busy)
        [record] = await host.list_records()
        assert (record.status, record.strikes, record.reason) == (RunStatus.INTERRUPTED, 0, str(raised.value))
        assert read_retry(record) == RetryState(count=3 * outage, outages=outage, error="Busy: full")
        delays.append(record.not_before - clock.now())
        await clock.advance(delays[-1])
    assert delays == [30 * SECOND, MINUTE, 2 * MINUTE]

    @tool(effect="pure")
    async def look() -> str:
        seen.extend([read_retry(record) for record in await host.list_records()])
        return "seen"

    seen: list[RetryState] = []
    model = ScriptedModel(tool_reply(call("1", "look")), tool_reply(call("2", "look")), "done")
    result = await host.resume(Agent(name="a", model=model, tools=[look]), "r")
    assert (result.output, result.steps) == ("done", 3)
    assert seen[-1] == RetryState(count=9, error="Busy: full"), "the next outage begins with a short delay"


async def test_a_long_outage_parks_no_run() -> None:
    host = SimulatedHost()
    agent = Agent(name="a", model=FlakyModel(*[Busy()] * 99), retry=Retry(max_tries=1))
    with pytest.raises(ModelUnavailable):
        await host.executor.run(agent, "go", run_id="r")
    for _ in range(8):
        with pytest.raises(ModelUnavailable):
            await host.resume(agent, "r")
    [record] = await host.list_records()
    assert (record.status, record.strikes) == (RunStatus.INTERRUPTED, 0)


async def test_a_wait_longer_than_the_limit_interrupts_the_run_for_that_time() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    model = FlakyModel(ModelUnavailable("closed", timedelta(hours=3)))
    with pytest.raises(ModelUnavailable, match="after 1 attempt,"):
        await host.executor.run(Agent(name="a", model=model), "go", run_id="r")
    [record] = await host.list_records()
    assert record.not_before - clock.now() == timedelta(hours=3)


async def test_an_error_of_the_request_fails_the_run_at_once() -> None:
    class BadRequest(Exception):
        status_code = 400

    host, error = SimulatedHost(), BadRequest("no such model")
    model = FlakyModel(error)
    with fails_with(BadRequest) as raised:
        await host.executor.run(Agent(name="a", model=model), "go", run_id="r")
    assert (raised.value, model.calls) == (error, 1)


async def test_other_errors_are_retried_if_the_agent_says_so() -> None:
    clock, model = ManualClock(), FlakyModel(LookupError())
    agent = Agent(name="a", model=model, retry=Retry(retry_on=LookupError))
    run = asyncio.create_task(Executor(clock=clock).run(agent, "go"))
    await clock.advance(MINUTE)
    assert (await run).output == "done"


async def test_a_shutdown_ends_the_pause_at_once() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    run = asyncio.create_task(
        host.executor.run(Agent(name="a", model=FlakyModel(*[Busy()] * 4), retry=FOUR), "go", run_id="r")
    )
    await clock.advance(SECOND)
    shutdown = asyncio.create_task(host.executor.shutdown(timedelta(hours=1)))
    with pytest.raises(Shutdown):
        await run  # the clock stands still
    await shutdown
    assert await host.get_statuses() == {"r": RunStatus.INTERRUPTED}


async def test_a_cancel_ends_the_pause_at_once() -> None:
    clock = ManualClock()
    agent = Agent(name="a", model=FlakyModel(*[Busy()] * 4), retry=FOUR)
    run = asyncio.create_task(Executor(clock=clock).run(agent, "go", on_cancel="cancel"))
    await clock.advance(SECOND)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert clock.waiting == 0


async def test_a_model_that_announces_a_shutdown_is_not_retried() -> None:
    model = FlakyModel(Shutdown("now"))
    with pytest.raises(Shutdown):
        await SimulatedHost().executor.run(Agent(name="a", model=model), "go")
    assert model.calls == 1


async def test_a_retry_is_in_the_store_while_the_run_pauses() -> None:
    clock = ManualClock()
    host = SimulatedHost(clock=clock)
    agent = Agent(name="a", model=FlakyModel(Busy("full")), retry=FOUR)
    run = asyncio.create_task(host.executor.run(agent, "go", run_id="r"))
    await clock.advance(timedelta(0))
    [record] = await host.list_records()
    assert read_retry(record) == RetryState(count=1, error="Busy: full", next_at=clock.now() + SECOND)
    await clock.advance(SECOND)
    await run


@pytest.mark.parametrize("given", [None, 3, timedelta(seconds=1)])
def test_an_agent_refuses_what_is_no_policy(given: Any) -> None:
    with pytest.raises(DefinitionError, match="retry is"):
        Agent(name="a", model=ScriptedModel("done"), retry=given)


def test_an_outage_is_waited_out_longer_and_longer() -> None:
    minutes = [get_outage_delay(outages) / timedelta(minutes=1) for outages in range(1, 9)]
    assert minutes == [0.5, 1, 2, 4, 8, 15, 15, 15]
    assert get_outage_delay(10_000) == timedelta(minutes=15)
