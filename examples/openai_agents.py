"""An agent of the OpenAI Agents SDK that survives a SIGKILL after a handoff, in the middle of its tool calls.

The models follow a script, so the example needs no key. Any model of the SDK is used in the same way.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool, set_tracing_disabled
from agents.testing import assistant_message, function_call

from holdfast import App
from holdfast.adapters.openai_agents import ToolPolicy, durable


class Script(Model):
    """Stands for a model: asks for each batch of calls that the conversation does not show yet, then answers."""

    def __init__(self, *batches: list[str]) -> None:
        self._batches = batches

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:
        seen = {item.get("call_id") for item in input}
        batch = next((names for names in self._batches if names[0] not in seen), None)
        print(f"model: {', '.join(batch) if batch else 'done'}", flush=True)
        output = [function_call(name, {}, call_id=name) for name in batch] if batch else [assistant_message("booked")]
        return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@function_tool
async def pay() -> str:
    print("  pay", flush=True)
    return "9900 cents"


@function_tool
async def reserve() -> str:
    """Kills its own process in the first call."""
    await asyncio.sleep(0.3)  # until `pay` is recorded
    print("  reserve", flush=True)
    if "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return "room 7"


set_tracing_disabled(True)
booking = Agent(name="booking", model=Script(["pay", "reserve"]), tools=[pay, reserve])
desk = Agent(name="desk", model=Script(["transfer_to_booking"]), handoffs=[booking])

# `durable` is all it takes. A tool without an effect is never repeated; `reserve` is, because it is idempotent.
agent = durable(desk, tools={"reserve": ToolPolicy("idempotent")})


async def travel() -> None:
    async with App([agent], "sqlite:trips.db") as app:
        result = await app.run(agent, "A weekend, please.", run_id="trip")
        print(f"{result.output} after {result.usage.requests} requests", flush=True)


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
# model: transfer_to_booking
# model: pay, reserve
#   pay
#   reserve
# killed
#   reserve
# model: done
# booked after 3 requests
# finished
