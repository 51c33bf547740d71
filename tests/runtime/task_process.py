"""Agents whose prompt says what they do, and their process: `python -m tests.runtime.task_process FOLDER URL ...`.

Each word of the prompt is a tool that is called in a step of its own; then the run is done. What tools do to the world
is a line in the file `deeds`; what the world is like is a matter of which files exist.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from holdfast import Agent, App, Reply, ToolCall, Usage, current_call
from holdfast.checkpoint.store import RunStore
from holdfast.clock import SystemClock
from holdfast.core import Message, ToolSchema
from holdfast.core.agents.tool import Tool
from holdfast.core.run.messages import User
from holdfast.stores import store_from_url
from holdfast.stores.sqlite import SqliteStore


class OffsetClock(SystemClock):
    """The machine's clock, some time ahead."""

    def __init__(self, by: timedelta) -> None:
        self._by = by

    def now(self) -> datetime:
        return super().now() + self._by


class TaskAgents:
    """The agents `errand` and `family`, in a world that is a folder."""

    def __init__(self, folder: Path, *, without: Sequence[str] = (), missing_tools: str = "defer") -> None:
        self.folder = folder
        tools: list[Tool] = [
            Tool(self.note),
            Tool(self.gate, effect="idempotent"),
            Tool(self.crash, effect="idempotent"),
            Tool(self.stride, effect="idempotent"),
            Tool(self.exit, effect="idempotent"),
            Tool(self.charge, in_doubt="park"),
            Tool(self.delegate, effect="idempotent"),
        ]
        self.agent = Agent(
            name="errand",
            model=self.model,
            tools=[tool for tool in tools if tool.name not in without],
            missing_tools=missing_tools,  # type: ignore[arg-type]
        )
        self.other = Agent(name="other", model=self.model)

    async def model(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        """Asks for one word of the prompt after the other. Its model is gone while the file `outage` is there."""
        words = next(message.text for message in messages if isinstance(message, User)).split()
        done = sum(isinstance(message, Reply) for message in messages)
        used = Usage(input_tokens=1)
        if done == len(words):
            return Reply(text=f"did {' '.join(words)}", usage=used)
        if words[done] == "ask" and (self.folder / "outage").exists():
            raise LookupError("the model is gone")
        name, _, argument = words[done].partition("=")
        arguments = {"prompt": argument.replace("+", " ")} if argument else {}
        return Reply(tool_calls=[ToolCall(id=f"c{done}", name=name, arguments=arguments)], usage=used)

    def record_effect(self) -> None:
        call = current_call()
        with (self.folder / "deeds").open("a") as deeds:
            deeds.write(f"{call.run_id} {call.tool} {call.call_id}\n")

    def read_effects(self) -> list[str]:
        path = self.folder / "deeds"
        return path.read_text().splitlines() if path.exists() else []

    async def note(self) -> str:
        """Must not happen twice."""
        self.record_effect()
        return "noted"

    async def gate(self) -> str:
        """Waits until the file `open` is there."""
        self.record_effect()
        while not (self.folder / "open").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.01)
        return "passed"

    async def crash(self) -> str:
        """Takes its process down until the file `cured` is there."""
        self.record_effect()
        self._kill_process()
        return "survived"

    async def exit(self) -> str:
        """Exits once another run is at its gate, until the file `cured` is there."""
        self.record_effect()
        while not any(" gate " in effect for effect in self.read_effects()):  # noqa: ASYNC110 - of another run
            await asyncio.sleep(0.01)
        if not (self.folder / "cured").exists():
            sys.exit(7)
        return "stayed"

    async def stride(self) -> str:
        """Takes its process down when it is called for the first time."""
        call = current_call()
        seen = f"{call.run_id} stride {call.call_id}" in self.read_effects()
        self.record_effect()
        if not seen:
            self._kill_process()
        return "done"

    async def charge(self) -> str:
        """Takes its process down after its effect: the result is lost. Must not happen twice."""
        self.record_effect()
        self._kill_process()
        return "charged"

    async def delegate(self, prompt: str) -> str:
        """Hands an errand to a child."""
        return str((await current_call().run(self.agent, prompt)).output)

    def _kill_process(self) -> None:
        if not (self.folder / "cured").exists():
            os.kill(os.getpid(), signal.SIGKILL)


def open_store(url: str, later: timedelta) -> RunStore:
    """The store; its backoffs and retentions are as old as `later` makes them."""
    if later and url.startswith("sqlite:"):
        return SqliteStore(url.removeprefix("sqlite:"), clock=OffsetClock(later))
    return store_from_url(url)


async def host(errands: TaskAgents, store: RunStore, command: str, arguments: list[str]) -> None:
    async with App([errands.agent, errands.other], store, worker=False) as app:
        print("ready", flush=True)
        if command == "serve":
            await app.serve()
        elif command == "recover":
            report = await app.recover()
            print({run_id: fate.value for run_id, fate in report.statuses.items()}, flush=True)
        elif command == "run":
            print((await app.run("errand", arguments[1], run_id=arguments[0])).output, flush=True)


def main(folder: str, url: str, later: str, command: str, *arguments: str) -> None:
    errands = TaskAgents(Path(folder))
    store = open_store(url, timedelta(seconds=int(later)))
    if command == "run_sync":
        print(App([errands.agent], store).run_sync("errand", arguments[1], run_id=arguments[0]).output, flush=True)
    else:
        asyncio.run(host(errands, store, command, list(arguments)))


if __name__ == "__main__":
    main(*sys.argv[1:])
