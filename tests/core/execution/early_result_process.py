"""A worker that is killed in a tool: `python -m tests.core.execution.early_result_process URL ...`.

The arguments after the URL: the effect of the tool, `async` or `thread`, and `complete` or `token`: give the result and
die, or print the token and wait.
"""

import asyncio
import os
import signal
import sys
import threading
from typing import Any

from tests.scripted_model import ScriptedModel, call, tool_reply

from holdfast import Agent, App, Deferred, current_call
from holdfast.core.agents.tool import Tool
from holdfast.stores.from_url import store_from_url


def make_agent(effect: str, kind: str, work: Any, *replies: Any) -> tuple[Agent, ScriptedModel]:
    """An agent whose tool does `work` with its token, and returns `Deferred`."""

    async def render() -> Deferred:
        await work(current_call().completion_token)
        return Deferred()

    def render_in_thread() -> Deferred:
        asyncio.run(work(current_call().completion_token))
        return Deferred()

    tool = Tool(render_in_thread if kind == "thread" else render, name="render", effect=effect)
    model = ScriptedModel(tool_reply(call("1", "render")), *replies)
    return Agent(name="a", model=model, tools=[tool]), model


async def main(url: str, effect: str, kind: str, end: str) -> None:
    async def complete(token: str) -> None:
        if end == "token":
            print(token, flush=True)
            threading.Event().wait() if kind == "thread" else await asyncio.Event().wait()
        async with App([], store_from_url(url), worker=False) as other:
            await other.complete_call(token, "sea.png")
        os.kill(os.getpid(), signal.SIGKILL)

    agent, _ = make_agent(effect, kind, complete, "never")
    async with App([agent], url) as app:
        await app.run("a", "go", run_id="r")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
