"""An agent that asks the SDK's own provider at a loopback address; and a process that runs it, or resumes it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agents import Agent as SDKAgent
from agents import OpenAIProvider, RunConfig, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from holdfast import Agent, App, Retry
from holdfast.adapters.openai_agents import ToolPolicy, durable

RUN = "http"


@asynccontextmanager
async def http_agent(
    url: str, world: Path, *, stream: bool = False, timeout: float = 30.0, retry: Retry | None = None
) -> AsyncIterator[Agent]:
    """An agent whose tools write down what they do."""

    @function_tool
    def look(city: str) -> str:
        _note(world, f"look {city}")
        return f"{city} is warm"

    @function_tool
    def pay(city: str) -> str:
        _note(world, f"pay {city}")
        return f"paid {city}"

    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
        yield durable(
            SDKAgent(name="http", model="gpt-4o", tools=[look, pay]),
            tools={"look": ToolPolicy("pure")},
            run_config=RunConfig(model_provider=OpenAIProvider(openai_client=client)),
            cost=get_cost,
            stream=stream,
            retry=retry or Retry(),
        )


def get_cost(model: str, usage: Any) -> float:
    assert model == "gpt-4o"
    return float(usage.input_tokens + 10 * usage.output_tokens) / 1_000_000


def _note(world: Path, text: str) -> None:
    with world.open("a") as file:
        file.write(f"{text}\n")


async def _run_agent(url: str, store: str, world: str, kind: str) -> None:
    async with http_agent(url, Path(world)) as agent, App([agent], store, worker=False) as app:
        result = await (app.run(agent, "go", run_id=RUN) if kind == "run" else app.resume(RUN))
    print(json.dumps({"output": result.output, "requests": result.usage.requests, "cost": result.usage.cost_usd}))


if __name__ == "__main__":
    asyncio.run(_run_agent(*sys.argv[1:]))
