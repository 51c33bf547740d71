"""The agent of pydantic-ai, made durable by its own integration of DBOS."""

import time

from bench.systems.dbos.system import launched
from bench.systems.footprint import footprint
from bench.systems.protocol import Job, Result, text
from dbos import DBOS
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.durable_exec.dbos import DBOSDurability
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

times: list[float] = []


async def one_run(job: Job) -> Result:
    steps, size = job["steps"], job.get("bytes", 1000)

    async def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        times.append(time.perf_counter())
        number = len(messages) - 1
        if number >= 2 * steps:
            return ModelResponse(parts=[TextPart("done")])
        call = ToolCallPart("look", {"number": number + 1}, tool_call_id=f"call-{number}")
        return ModelResponse(parts=[TextPart(text(number, size)), call])

    agent: Agent[None, str] = Agent(FunctionModel(reply), name="bench", capabilities=[DBOSDurability()])

    @agent.tool_plain
    @DBOS.step()  # the integration leaves tools to their author
    async def look(number: int) -> str:
        return text(number, size)

    @DBOS.workflow()
    async def answer(prompt: str) -> str:
        return (await agent.run(prompt, usage_limits=UsageLimits(request_limit=None))).output

    with launched(job):
        before, began = footprint(job), time.perf_counter()
        await answer("go")
        cost = footprint(job).since(before)
    steps_seconds = [later - earlier for earlier, later in zip([began, *times[1:-1]], times[1:], strict=True)]
    return {
        "seconds": times[-1] - began,
        "step_seconds": steps_seconds,
        "transcript_bytes": 2 * size * steps,
        **cost,
    }
