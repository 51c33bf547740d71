"""A pydantic-ai agent, bare and made durable by holdfast: `python -m bench.systems.pydantic_ai JOB`.

Its tool says nothing about its effect, so it counts as `once`: two commits a step.
"""

import itertools
import time
from pathlib import Path

from bench.systems.footprint import Footprint, footprint
from bench.systems.protocol import Job, Result, main, text
from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai import UsageLimits
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import App, Bounds
from holdfast.adapters.pydantic_ai import durable


class BenchAgent:
    """An agent, and the times of its model calls."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.times: list[float] = []
        self.ends: list[Footprint] = []
        self.agent: PydanticAIAgent[None, str] = PydanticAIAgent(FunctionModel(self._reply), name="bench")
        self.agent.tool_plain(self.look)

    async def look(self, number: int) -> str:
        return text(number, self._job.get("bytes", 1000))

    async def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.times.append(time.perf_counter())
        done = len(messages) // 2
        if done == self._job["steps"]:
            self.ends.append(footprint(self._job))
            return ModelResponse(parts=[TextPart("done")])
        said = TextPart(text(2 * done, self._job.get("bytes", 1000)))
        return ModelResponse(parts=[said, ToolCallPart("look", {"number": 2 * done + 1}, f"c{done}")])


async def agent_run(job: Job) -> Result:
    measured, steps = BenchAgent(job), job["steps"]
    if job["variant"] == "bare":
        before, began = footprint(job), time.perf_counter()
        await measured.agent.run("go", usage_limits=UsageLimits(request_limit=None))
    else:
        known = durable(measured.agent, bounds=Bounds(max_steps=steps + 1))
        async with App([known], f"sqlite:{Path(job['folder']) / 'runs.db'}", worker=False) as app:
            before, began = footprint(job), time.perf_counter()
            await app.run(known, "go")
    measured.times[0] = began
    (end,) = measured.ends
    return {
        "seconds": measured.times[-1] - began,
        "step_seconds": [after - earlier for earlier, after in itertools.pairwise(measured.times)],
        "transcript_bytes": 2 * job.get("bytes", 1000) * steps,
        **end.since(before),
    }


if __name__ == "__main__":
    main({"w5": agent_run}, packages=["holdfast", "pydantic-ai-slim"])
