"""The pydantic-ai agent that is measured, bare or made durable by a system."""

import itertools
import time

from bench.systems.footprint import Footprint, footprint
from bench.systems.protocol import Job, Result, text
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel


class BenchAgent:
    """An agent, and the times of its model calls."""

    def __init__(self, job: Job, *capabilities: AbstractCapability[None]) -> None:
        self._job = job
        self._times: list[float] = []
        self._ends: list[Footprint] = []
        self.agent: Agent[None, str] = Agent(FunctionModel(self._reply), name="bench", capabilities=capabilities)
        self.agent.tool_plain(self.look)

    async def look(self, number: int) -> str:
        return text(number, self._job.get("bytes", 1000))

    async def _reply(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self._times.append(time.perf_counter())
        done = len(messages) // 2
        if done == self._job["steps"]:
            self._ends.append(footprint(self._job))
            return ModelResponse(parts=[TextPart("done")])
        said = TextPart(text(2 * done, self._job.get("bytes", 1000)))
        return ModelResponse(parts=[said, ToolCallPart("look", {"number": 2 * done + 1}, f"c{done}")])

    def describe_run(self, before: Footprint, began: float) -> Result:
        """Return the result of the job, whose run has ended."""
        self._times[0] = began
        (end,) = self._ends
        return {
            "seconds": self._times[-1] - began,
            "step_seconds": [after - earlier for earlier, after in itertools.pairwise(self._times)],
            "transcript_bytes": 2 * self._job.get("bytes", 1000) * self._job["steps"],
            **end.since(before),
        }
