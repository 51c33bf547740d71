"""A pydantic-ai agent that survives a SIGKILL in the middle of three tool calls.

The model follows a script, so the example needs no key. Any model of pydantic-ai is used in the same way.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from holdfast import App
from holdfast.adapters.pydantic_ai import ToolPolicy, durable


class Trip(BaseModel):
    city: str
    cents: int


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Stands for a model: three calls at once, then the structured answer."""
    if len(messages) == 1:
        print("model: look, reserve and pay, please", flush=True)
        return ModelResponse(parts=[ToolCallPart(name, {"city": "Lyon"}, name) for name in ("look", "reserve", "pay")])
    print("model: done", flush=True)
    return ModelResponse(parts=[ToolCallPart("final_result", {"city": "Lyon", "cents": 9900})])


planner = Agent(FunctionModel(model), name="planner", output_type=Trip, instructions="Plan short trips.")


@planner.tool_plain
async def look(city: str) -> str:
    print(f"  look at {city}", flush=True)
    return "sunny"


@planner.tool_plain(sequential=True)
async def reserve(city: str) -> str:
    """Kills its own process in the first call."""
    print(f"  reserve a hotel in {city}", flush=True)
    if "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return "room 7"


@planner.tool_plain(sequential=True)
async def pay(city: str) -> str:
    print(f"  pay for {city}", flush=True)
    return "9900 cents"


# `durable` is all it takes. A tool without an effect is never repeated; `reserve` is, because it is idempotent.
agent = durable(planner, tools={"look": ToolPolicy("pure"), "reserve": ToolPolicy("idempotent")})


async def travel() -> None:
    async with App([agent], "sqlite:trips.db") as app:
        result = await app.run(agent, "A weekend, please.", run_id="trip")
        print(f"{result.output!r} after {result.usage.requests} requests and {result.usage.tool_calls} tool calls")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for argument in ("--die", "--finish"):
            child = subprocess.run([sys.executable, Path(__file__).resolve(), argument], cwd=folder, check=False)
            print("killed" if child.returncode == -signal.SIGKILL else "finished", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(travel())
    else:
        main()

# Output:
# model: look, reserve and pay, please
#   look at Lyon
#   reserve a hotel in Lyon
# killed
#   reserve a hotel in Lyon
#   pay for Lyon
# model: done
# Trip(city='Lyon', cents=9900) after 2 requests and 3 tool calls
# finished
