"""The real way to a model: the SDK's provider, HTTP, and a server that misbehaves."""

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.adapters.openai_agents.http_agent import http_agent
from tests.adapters.openai_agents.responses_server import ResponsesServer
from tests.adapters.openai_server import Request
from tests.core.null_listener import NullListener

from holdfast import App, Retry, RunInfo
from holdfast.core.run.run_events import RunEvent, TextDelta

TURNS = ([("c1", "look", {"city": "Lyon"}), ("c2", "pay", {"city": "Lyon"})], [("c3", "pay", {"city": "Faro"})], "paid")
DONE = ["look Lyon", "pay Lyon", "pay Faro"]
QUICK = Retry(initial_delay=timedelta(milliseconds=1))


class Texts(NullListener):
    """The text of replies as it arrived."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def on_event(self, info: RunInfo, event: RunEvent) -> None:
        if isinstance(event, TextDelta):
            self.texts.append(event.text)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_provider_of_the_sdk_answers_also_after_it_broke_off(tmp_path: Path, stream: bool) -> None:
    listener = Texts()
    async with ResponsesServer(TURNS, {1: ["cut"]}).serving() as server:
        world = tmp_path / "world"
        async with (
            http_agent(server.url, world, stream=stream, retry=QUICK) as agent,
            App([agent], "memory:", listener=listener) as app,
        ):
            result = await app.run(agent, "go")
    assert result.output == "paid"
    assert [request.outcome for request in server.log] == ["answered", "cut", "answered", "answered"]
    usage = result.usage
    assert (usage.requests, usage.input_tokens, usage.output_tokens, usage.reasoning_tokens) == (3, 3003, 303, 15)
    assert usage.cost_usd == pytest.approx((3003 + 3030) / 1_000_000)
    assert sorted(world.read_text().splitlines()) == sorted(DONE)
    assert listener.texts[-1:] == (["paid "] if stream else [])


async def test_a_killed_process_repeats_no_finished_request(tmp_path: Path) -> None:
    """It is killed while its request is in progress: what was answered before is not requested again."""
    process: asyncio.subprocess.Process | None = None

    def kill(request: Request) -> None:
        if request.turn == 1 and len(server.log) == 2 and process is not None:
            os.kill(process.pid, signal.SIGKILL)

    async def start(kind: str) -> asyncio.subprocess.Process:
        arguments = [server.url, f"sqlite:{tmp_path / 'runs.db'}", str(tmp_path / "world"), kind]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.adapters.openai_agents.http_agent",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
        )

    async with ResponsesServer(TURNS, {1: ["hang"]}, arrived=kill).serving() as server:
        process = await start("run")
        assert await process.wait() == -signal.SIGKILL
        process = await start("resume")
        out, _ = await process.communicate()
        assert process.returncode == 0
    assert json.loads(out) == {"output": "paid", "requests": 3, "cost": pytest.approx((3003 + 3030) / 1_000_000)}
    assert len(server.finished()) == len(set(server.finished())) == 3
    assert [request.outcome for request in server.log] == ["answered", "hang", "answered", "answered"]
    assert sorted((tmp_path / "world").read_text().splitlines()) == sorted(DONE)
