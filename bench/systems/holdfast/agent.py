"""The agent that is measured, and its App.

Variants: `sqlite` and `postgres` have a `pure` tool, so a step is one commit. With `-once` the tool is `once`: the
reply is durable before the tool is called, so a step is two commits.
"""

import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from bench.systems.protocol import Job, text

from holdfast import Agent, App, Bounds, Reply, RunInfo, ToolCall, WorkerSettings
from holdfast.core import Message, Tool, ToolSchema


def store_url(job: Job) -> str:
    """Return the URL of the job's store."""
    folder = Path(job["folder"])
    places = {"sqlite": f"sqlite:{folder / 'runs.db'}", "postgres": job["postgres"] or ""}
    return places[job["variant"].removesuffix("-once")]


def make_app(job: Job, agent: "BenchAgent", *, recover: bool = False, concurrency: int = 16) -> App:
    return App([agent], store_url(job), worker=WorkerSettings(take_runs=recover, concurrency=concurrency))


async def answer() -> None:
    """Do nothing before the answer."""


class Stamps:
    """The model of one run: asks for a tool in each step, records the time of each call, and answers after the last."""

    def __init__(self, agent: "BenchAgent") -> None:
        self._agent = agent
        self.times: list[float] = []

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.times.append(time.perf_counter())
        first = len(messages) - 1  # all but the prompt
        if first >= 2 * self._agent.steps:
            await self._agent.at_end()
            return Reply(text="done")
        call = ToolCall(id=str(first), name="look", arguments={"number": first + 1})
        return Reply(text=text(first, self._agent.bytes), tool_calls=[call])

    def step_seconds(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.times)]


class BenchAgent:
    """An agent of `steps` steps. `at_end` is called before the last reply."""

    name = "bench"

    def __init__(self, job: Job, *, at_end: Callable[[], Awaitable[None]] = answer) -> None:
        self.steps, self.bytes, self.at_end = job["steps"], job["bytes"], at_end
        self.runs: list[Stamps] = []
        self._tool = Tool(self.look, name="look", effect="once" if job["variant"].endswith("-once") else "pure")

    async def look(self, number: int) -> str:
        return text(number, self.bytes)

    async def build(self, info: RunInfo) -> Agent:
        stamps = Stamps(self)
        self.runs.append(stamps)
        bounds = Bounds(max_steps=self.steps + 1)
        return Agent(name=self.name, model=stamps, tools=[self._tool], bounds=bounds)
