"""An agent that asks a real provider class, at a loopback address; and a process that runs it, or recovers it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast import Agent, App, Retry
from holdfast.adapters.pydantic_ai import durable

RUN = "http"


@asynccontextmanager
async def http_agent(
    url: str, world: Path, *, stream: bool = False, retries: int = 2, timeout: float = 30.0, retry: Retry | None = None
) -> AsyncIterator[Agent]:
    """An agent whose tools write down what they do."""
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=retries, timeout=timeout) as client:
        yield durable(_agent(client, world), stream=stream, retry=retry or Retry())


def _agent(client: AsyncOpenAI, world: Path) -> PydanticAIAgent[None, str]:
    agent = PydanticAIAgent(OpenAIChatModel("gpt-4o", provider=OpenAIProvider(openai_client=client)), name="http")

    @agent.tool_plain(metadata={"effect": "pure"})
    def look(city: str) -> str:
        _note(world, f"look {city}")
        return f"{city} is warm"

    @agent.tool_plain
    def pay(city: str) -> str:
        _note(world, f"pay {city}")
        return f"paid {city}"

    return agent


def _note(world: Path, text: str) -> None:
    with world.open("a") as file:
        file.write(f"{text}\n")


async def _run_agent(url: str, store: str, world: str, kind: str) -> None:
    async with (
        http_agent(url, Path(world)) as agent,
        App([agent], store, worker=False) as app,
    ):
        result = await (app.run(agent, "go", run_id=RUN) if kind == "run" else app.resume(RUN))
    usage = {name: getattr(result.usage, name) for name in result.usage.__struct_fields__}
    print(json.dumps({"output": result.output, "steps": result.steps, "usage": usage}))


if __name__ == "__main__":
    asyncio.run(_run_agent(*sys.argv[1:]))
