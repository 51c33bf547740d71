"""An agent whose prompt is its script: each line of it is a step, with one or several tool calls."""

import asyncio
import functools
import json
import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from holdfast.core.agents.agent import Agent, Phase
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool import Tool, ToolSchema
from holdfast.core.agents.tool_context import current_call
from holdfast.core.agents.waiting_tools import ask_person, sleep, wait_for
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.core.run.waiting import ApprovalRequest, Deferred
from holdfast.testing.simulation.machine.process import SimulatedProcess
from holdfast.testing.simulation.scenarios.recorded_tools import begin_effect
from holdfast.testing.simulation.world_ledger import WorldLedger

#: A step: the tool calls of one reply, each a tool and its arguments.
Step = list[tuple[str, dict[str, Any]]]


def make_prompt(steps: Sequence[Step]) -> str:
    return json.dumps(steps)


class ScriptedAgent:
    """Builds the agent of each run, so that its model knows the run."""

    def __init__(self, name: str, scripted: "ScriptedProcess") -> None:
        self.name = name
        self._scripted = scripted

    async def build(self, info: RunInfo) -> Agent:
        return self._scripted.build(self.name, info)


class ScriptedProcess:
    """The agents of one simulated process, and what their tools and models do to the ledger."""

    def __init__(self, process: SimulatedProcess, ledger: WorldLedger, tokens: dict[str, str], slowness: float) -> None:
        self._process, self._ledger, self._tokens, self._slowness = process, ledger, tokens, slowness
        self._random = random.Random(process.random.random())
        self._tools: list[Tool] = [
            Tool(self.pure, effect="pure"),
            Tool(self.idempotent, effect="idempotent"),
            Tool(self.once),
            Tool(self.blocking),
            Tool(self.approved, approval=ApprovalRequest(expires_in=timedelta(seconds=4))),
            Tool(self.deferred),
            Tool(self.broken, effect="pure"),
            Tool(self.child, effect="idempotent"),
            sleep,
            wait_for,
            ask_person,
        ]

    def agents(self) -> "list[ScriptedAgent]":
        return [ScriptedAgent("actor", self), ScriptedAgent("staged", self)]

    def build(self, name: str, info: RunInfo) -> Agent:
        """Return the agent of one run."""
        phases = [Phase(name=phase, instructions=phase) for phase in ("x", "y")] if name == "staged" else []
        model = functools.partial(self.model, info.run_id, bool(phases))
        return Agent(name=name, model=model, tools=self._tools, phases=phases, retry=Retry(max_tries=3))

    async def model(self, run_id: str, staged: bool, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        users = [message.text for message in messages if isinstance(message, User)]
        steps: list[Step] = json.loads(users[0])
        replies = sum(isinstance(message, Reply) for message in messages)
        results = {each.call_id: each.content for each in messages if isinstance(each, ToolResult)}
        self._process.check_alive()
        self._ledger.call_model(run_id, replies, users[1:], results, check=not staged)
        await self._wait()
        usage = Usage(input_tokens=10, output_tokens=1)
        if replies >= len(steps):
            return Reply(text=f"heard {len(users) - 1}", usage=usage)
        phase = next((message.text for message in messages if isinstance(message, System)), "")
        calls = [
            ToolCall(id=f"{phase}{replies}.{index}", name=name, arguments=arguments)
            for index, (name, arguments) in enumerate(steps[replies])
        ]
        return Reply(tool_calls=calls, usage=usage)

    async def _wait(self) -> None:
        if self._random.random() < 0.6:
            await asyncio.sleep(self._random.random() ** 4 * self._slowness)

    async def _do(self, kind: str) -> str:
        effect = begin_effect(kind, self._process, self._ledger)
        await self._wait()
        self._process.check_alive()
        self._ledger.finish(effect)
        return f"{effect.call_id} done"

    # -- tools --------------------------------------------------------------------------------------------------

    async def pure(self) -> str:
        """Do something that may be repeated."""
        return await self._do("pure")

    async def idempotent(self) -> str:
        """Do something that may be repeated."""
        return await self._do("idempotent")

    async def once(self) -> str:
        """Do something that must not be repeated."""
        return await self._do("once")

    def blocking(self) -> str:
        """Do something in a thread that must not be repeated."""
        effect = begin_effect("once", self._process, self._ledger)
        if self._random.random() < 0.5:
            self._process.threads.sleep(self._random.random() * self._slowness)
        self._ledger.finish(effect)
        return f"{effect.call_id} done"

    async def approved(self) -> str:
        """Do something that a person has to approve."""
        return await self._do("once")

    async def deferred(self) -> Deferred:
        """Start something whose result comes later."""
        self._tokens[current_call().run_id + "/" + current_call().call_id] = current_call().completion_token
        await self._do("once")
        return Deferred(expires_in=timedelta(seconds=4))

    async def broken(self) -> str:
        """Fail."""
        await self._do("pure")
        raise ValueError("it is broken")

    async def child(self, steps: list[Any]) -> str:
        """Run another agent."""
        begin_effect("idempotent", self._process, self._ledger)
        result = await current_call().run(ScriptedAgent("actor", self), make_prompt(steps))
        return str(result.output)
