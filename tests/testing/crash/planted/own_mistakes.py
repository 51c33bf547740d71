"""Mistakes that users make in their own agents."""

import asyncio
import os
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.testing.crash.agents import Plan, look

from holdfast import NOT_EXECUTED, Agent, Reply, tool
from holdfast.core import Message, ToolContext, ToolSchema
from holdfast.core.agents.calls import Reconciliation
from holdfast.testing import TRIAL_FOLDER


async def nondeterministic_model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    return Reply(text=f"answer {secrets.token_hex(8)}")


async def _deny_execution(call: ToolContext) -> Reconciliation:
    return NOT_EXECUTED


@tool(reconcile=_deny_execution)
async def transfer(city: str) -> str:
    return f"transferred to {city}"


@tool(effect="pure")
async def die(city: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return city


nondeterministic = Agent(name="nondeterministic", model=nondeterministic_model)
lying_reconcile = Agent(name="lying", model=Plan(["transfer"], ["look"]), tools=[transfer, look])
dying = Agent(name="dying", model=Plan(["die"]), tools=[die])


async def hangs_after_a_crash() -> Agent:
    """Hang when the agent is built a second time."""
    marker = Path(os.environ[TRIAL_FOLDER]) / "built"
    if marker.exists():
        await asyncio.sleep(3600)
    marker.touch()
    return Agent(name="forgetful", model=Plan(["look"]), tools=[look])


def shrinking() -> Agent:
    """Build an agent that does less in every run after the first two."""
    counter = Path(os.environ[TRIAL_FOLDER]).parent / "runs"
    with counter.open("a") as runs:
        runs.write(".")
        batches = [["look"], ["look"]] if runs.tell() <= 2 else [["look"]]
    return Agent(name="shrinking", model=Plan(*batches), tools=[look])


class NotAtTheTop:
    """Holds an agent that another process cannot import."""

    agent = Agent(name="hidden", model=nondeterministic_model)
