"""Mistakes that users make with their own agents."""

import asyncio
import os
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.crash.agents import Plan, look

from holdfast import NOT_EXECUTED, Agent, Message, Reply, ToolContext, ToolSchema, tool
from holdfast.core.effects import Reconciliation
from holdfast.testing import TRIAL_FOLDER


async def moody(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    return Reply(text=f"answer {secrets.token_hex(8)}")


async def _never_happened(call: ToolContext) -> Reconciliation:
    return NOT_EXECUTED


@tool(reconcile=_never_happened)
async def transfer(city: str) -> str:
    return f"transferred to {city}"


@tool(effect="pure")
async def die(city: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return city


undecided = Agent(name="undecided", model=moody)
lying_reconcile = Agent(name="lying", model=Plan(["transfer"], ["look"]), tools=[transfer, look])
dying = Agent(name="dying", model=Plan(["die"]), tools=[die])


async def after_a_crash() -> Agent:
    """An agent that hangs when it is made again."""
    marker = Path(os.environ[TRIAL_FOLDER]) / "made"
    if marker.exists():
        await asyncio.sleep(3600)
    marker.touch()
    return Agent(name="forgetful", model=Plan(["look"]), tools=[look])


def shrinking() -> Agent:
    """An agent that has less to do in every run but the first two."""
    counter = Path(os.environ[TRIAL_FOLDER]).parent / "runs"
    with counter.open("a") as runs:
        runs.write(".")
        batches = [["look"], ["look"]] if runs.tell() <= 2 else [["look"]]
    return Agent(name="shrinking", model=Plan(*batches), tools=[look])


class NotAtTheTop:
    """Holds what no other process can find."""

    agent = Agent(name="hidden", model=moody)
