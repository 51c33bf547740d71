"""The worker is killed, or the server restarts, in the middle of a stream."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tests.postgres_server import LocalServer
from tests.runtime.streams.streaming_worker import make_agent
from tests.runtime.streams.watching import collect, get_types, is_text, look, wait_for
from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Reply
from holdfast.events import Event, ReplyAdded, StatusChanged


@asynccontextmanager
async def running_worker(url: str, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker in a process of its own. Killed at the end, if it still runs."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.runtime.streams.streaming_worker", url, *options
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_a_watcher_survives_the_death_of_the_worker(durable_store_url: str) -> None:
    async with App([make_agent(hangs=False)], durable_store_url, worker=False) as app:
        run_id = await app.submit("streaming", "How is Rome?")
        async with aclosing(app.events(run_id)) as events:
            async with running_worker(durable_store_url, "hang") as first:
                seen: list[Event] = []
                while not seen or not is_text(seen[-1]):
                    seen.append(await anext(events))
                first.kill()
                await first.wait()
            # The reply of another worker would replace the draft, without a retraction.
            while seen[-1].type != "draft_retracted":
                seen.append(await anext(events))
            async with running_worker(durable_store_url):
                rest = await collect(events)
        everything = await collect(app.events(run_id))
    assert [event for event in [*seen, *rest] if event.cursor] == [event for event in everything if event.cursor]
    assert [event.text for event in rest if isinstance(event, ReplyAdded)] == ["Rome is warm"]
    assert rest[-1] == StatusChanged(run_id=run_id, status="done")


async def test_a_watcher_survives_a_restart_of_the_server(server: LocalServer, url: str) -> None:
    script, gate = ScriptedModel(tool_reply(call("1", "look", city="Rome")), "done"), asyncio.Event()

    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        reply = await script(messages, tools)
        if not reply.tool_calls:
            await gate.wait()
        return reply

    async with App([Agent(name="a", model=model, tools=[look])], url) as app, App([], url, worker=False) as other:
        run_id = await app.submit("a", "go")
        watchers = [app.events(run_id), other.events(run_id)]
        for events in watchers:
            await wait_for(events, lambda event: event.type == "step_finished")
        await asyncio.to_thread(server.stop, crash=True)
        await asyncio.to_thread(server.start)
        gate.set()
        for events in watchers:
            assert get_types(await collect(events)) == ["reply", "step_finished", "output"]
