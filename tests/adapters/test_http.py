"""The real way to a model: a provider class of pydantic-ai, HTTP, and a server that misbehaves."""

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.http_agent import RUN, http_agent
from tests.adapters.openai_server import Fault, OpenAIServer, Request
from tests.core.null_listener import NullListener

from holdfast import App, Retry, RunInfo
from holdfast.checkpoint.record import RunStatus
from holdfast.checkpoint.store import iter_runs
from holdfast.core import Executor, Ports
from holdfast.core.run.messages import Usage
from holdfast.core.run.run_events import Event, RetryScheduled
from holdfast.errors import ModelUnavailable
from holdfast.testing.manual_clock import ManualClock

TURNS = (
    [("c1", "look", {"city": "Lyon"}), ("c2", "pay", {"city": "Lyon"})],
    [("c3", "look", {"city": "Faro"})],
    [("c4", "pay", {"city": "Faro"})],
    "both are paid",
)
#: No attempt but the first.
ONCE = Retry(max_tries=1)
DONE = ["look Lyon", "pay Lyon", "look Faro", "pay Faro"]


class Ends(NullListener):
    """The errors with which attempts of runs have ended."""

    def __init__(self) -> None:
        self.errors: asyncio.Queue[BaseException] = asyncio.Queue()

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        self.errors.put_nowait(error)


async def unharmed(tmp_path: Path, *, stream: bool) -> Any:
    async with OpenAIServer(TURNS).serving() as server:
        known = http_agent(server.url, tmp_path / "unharmed", stream=stream)
        async with known as agent, App([agent], None) as app:
            result = await app.run(agent, "go")
    assert result.usage.cost_usd > 0
    assert result.usage.input_tokens == 4006
    return result


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("turn", [0, 2])
@pytest.mark.parametrize("fault", ["429", "500"])
async def test_the_provider_asks_again_after_a_refusal(tmp_path: Path, fault: Fault, turn: int, stream: bool) -> None:
    async with OpenAIServer(TURNS, {turn: [fault, fault]}).serving() as server:
        known = http_agent(server.url, tmp_path / "world", stream=stream)
        async with known as agent, App([agent], "memory:") as app:
            result = await app.run(agent, "go")
    usual = await unharmed(tmp_path, stream=stream)
    assert (result.output.strip(), result.usage) == (usual.output.strip(), usual.usage)
    assert len(server.log) == 6
    assert len(set(server.finished())) == len(server.finished()) == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_failed_is_made_again(tmp_path: Path, stream: bool) -> None:
    quick = Retry(initial_delay=timedelta(milliseconds=1))
    faults: dict[int, list[Fault]] = {0: ["429", "500"], 1: ["hang"], 2: ["cut", "cut"]}
    async with OpenAIServer(TURNS, faults).serving() as server:
        known = http_agent(server.url, tmp_path / "world", stream=stream, retries=0, timeout=0.5, retry=quick)
        async with known as agent, App([agent], "memory:") as app:
            result = await app.run(agent, "go")
    usual = await unharmed(tmp_path, stream=stream)
    # A part of the answer had come before it was cut off: those requests count, though nothing of them is kept.
    extra = Usage(requests=2) if stream else Usage()
    assert (result.output.strip(), result.usage) == (usual.output.strip(), usual.usage + extra)
    outcomes = ["429", "500", "answered", "hang", "answered", "cut", "cut", "answered", "answered"]
    assert [request.outcome for request in server.log] == outcomes
    assert len(set(server.finished())) == 4
    assert sorted((tmp_path / "world").read_text().splitlines()) == sorted(DONE)


async def test_the_provider_says_when_it_wants_to_be_asked_again(tmp_path: Path) -> None:
    clock, hour = ManualClock(), timedelta(hours=1)
    heard: asyncio.Queue[RetryScheduled] = asyncio.Queue()

    class Listener(NullListener):
        async def on_event(self, info: RunInfo, event: Event) -> None:
            if isinstance(event, RetryScheduled):
                heard.put_nowait(event)

    async with OpenAIServer(TURNS[-1:], {0: ["later"]}).serving() as server:
        patient = Retry(max_elapsed=hour)
        async with http_agent(server.url, tmp_path / "world", retries=0, retry=patient) as agent:
            run = asyncio.create_task(Executor(Ports(listener=Listener()), clock=clock).run(agent, "go"))
            event = await heard.get()
            assert (event.delay, event.attempt, event.step) == (hour, 1, 1)
            assert "in an hour" in event.error
            await clock.advance(hour)
            assert (await run).output == TURNS[-1]


async def test_a_longer_wait_than_the_limit_interrupts_the_run_for_that_time(tmp_path: Path) -> None:
    async with OpenAIServer(TURNS, {0: ["later"]}).serving() as server:
        known, ends = http_agent(server.url, tmp_path / "world", retries=0), Ends()
        async with known as agent, App([agent], "memory:", listener=ends) as app:
            run = asyncio.create_task(app.run(agent, "go", run_id=RUN))
            error = await ends.errors.get()
            assert isinstance(error, ModelUnavailable)
            assert error.retry_after == timedelta(hours=1)
            assert not run.done()
            run.cancel()
            assert app.store is not None
            [record] = [each async for each in iter_runs(app.store)]
            assert record.status is RunStatus.INTERRUPTED
            assert record.not_before - record.updated_at > timedelta(minutes=59)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["429", "500", "hang", "cut"])
async def test_a_model_that_does_not_answer_interrupts_the_run(tmp_path: Path, fault: Fault, stream: bool) -> None:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    async with OpenAIServer(TURNS, {2: [fault]}).serving() as server:
        known = http_agent(server.url, tmp_path / "world", stream=stream, retries=0, timeout=0.5, retry=ONCE)
        async with known as agent, App([agent], store, worker=False, listener=(ends := Ends())) as app:
            run = asyncio.create_task(app.run(agent, "go", run_id=RUN))
            assert isinstance(await ends.errors.get(), ModelUnavailable)
            assert app.store is not None
            [record] = [each async for each in iter_runs(app.store)]
            assert record.status is RunStatus.INTERRUPTED
            assert record.not_before > record.updated_at
            result = await app.resume(RUN)
            assert (await run).output == result.output, "its caller has waited"
    usual = await unharmed(tmp_path, stream=stream)
    # A part of the answer had come before it was cut off: that request counts, though nothing of it is kept.
    extra = Usage(requests=1) if (fault, stream) == ("cut", True) else Usage()
    assert (result.output.strip(), result.usage) == (usual.output.strip(), usual.usage + extra)
    assert [request.outcome for request in server.log] == ["answered", "answered", fault, "answered", "answered"]
    assert len(set(server.finished())) == 4
    assert sorted((tmp_path / "world").read_text().splitlines()) == sorted(DONE)


class Child:
    """A process that runs the agent, and can be killed."""

    def __init__(self, server: OpenAIServer, folder: Path) -> None:
        self._arguments = [server.url, f"sqlite:{folder / 'runs.db'}", str(folder / "world")]

    async def start(self, kind: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.adapters.http_agent", *self._arguments, kind, stdout=asyncio.subprocess.PIPE
        )


@pytest.mark.parametrize("turn", [1, 3])
async def test_a_killed_process_repeats_no_finished_request(tmp_path: Path, turn: int) -> None:
    """It is killed while its request is in progress: what was answered before is not requested again."""
    killed: list[int] = []
    process: asyncio.subprocess.Process | None = None

    def kill(request: Request) -> None:
        if request.turn == turn and not killed and process is not None:
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)
            request.outcome = "killed"

    async with OpenAIServer(TURNS, {turn: ["hang"]}, arrived=kill).serving() as server:
        child = Child(server, tmp_path)
        process = await child.start("run")
        assert await process.wait() == -signal.SIGKILL
        process = await child.start("resume")
        out, _ = await process.communicate()
        assert process.returncode == 0
    result, usual = json.loads(out), await unharmed(tmp_path, stream=False)
    assert (result["output"], result["steps"]) == (usual.output, usual.steps)
    assert result["usage"] == {name: getattr(usual.usage, name) for name in usual.usage.__struct_fields__}
    assert len(server.finished()) == len(set(server.finished())) == 4
    assert len(server.log) == 5
    assert sorted((tmp_path / "world").read_text().splitlines()) == sorted(DONE)
