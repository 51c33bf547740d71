"""Agents whose prompt, or message, is their script: each line of it is a step, with one or several tool calls."""

import asyncio
import functools
import json
from collections.abc import Sequence
from typing import Any

from holdfast.core.agents.agent import Agent, Phase
from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool import Tool, ToolSchema
from holdfast.core.agents.tool_context import current_call
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Message, Reply, System, ToolCall, ToolResult, Usage, User
from holdfast.testing.simulation.scenarios.script_tools import AGENT_TOOLS, BOOK, SCRIPTED

#: A step: the tool calls of one reply, each a tool and its arguments.
Step = list[tuple[str, dict[str, Any]]]

#: What one model call uses.
USAGE = Usage(input_tokens=10, output_tokens=1)


def make_prompt(steps: Sequence[Step]) -> str:
    return json.dumps(steps)


def make_message(message_id: str, steps: Sequence[Step]) -> str:
    """Return a message of a conversation."""
    return f"{message_id} {make_prompt(steps)}"


class ScriptedAgent:
    """Builds the agent of each run, so that its model knows the run."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def build(self, info: RunInfo) -> Agent:
        phases = [Phase(name=phase, instructions=phase) for phase in ("x", "y")] if self.name == "staged" else []
        answer = _talk if self.name == "talker" else _act
        model = functools.partial(_call_model, answer, info.run_id)
        scripted = SCRIPTED.get()
        tools = [scripted.choose(tool) for tool in _TOOLS] + [BOOK] * scripted.has_transactions
        return Agent(name=self.name, model=model, tools=tools, phases=phases, retry=_RETRY)


async def _call_model(answer: Any, run_id: str, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    scripted = SCRIPTED.get()
    with scripted.executing(run_id):
        calls, text = answer(run_id, messages)
        await scripted.wait()
    return Reply(text=text, tool_calls=calls, usage=USAGE)


def _act(run_id: str, messages: Sequence[Message]) -> tuple[list[ToolCall], str]:
    """Play the script of the prompt."""
    users = [message.text for message in messages if isinstance(message, User)]
    replies = sum(isinstance(message, Reply) for message in messages)
    phase = next((message.text for message in messages if isinstance(message, System)), "")
    SCRIPTED.get().ledger.call_model(run_id, replies, users[1:], _read_results(messages), check=not phase)
    steps: list[Step] = json.loads(users[0])
    if replies >= len(steps):
        return [], f"heard {len(users) - 1}"
    return _make_calls(f"{phase}{replies}", steps[replies]), ""


def _talk(run_id: str, messages: Sequence[Message]) -> tuple[list[ToolCall], str]:
    """Play the script of the last message. One that steers takes the place of the script before."""
    users = [message.text for message in messages if isinstance(message, User)]
    replies = sum(isinstance(message, Reply) for message in messages)
    SCRIPTED.get().ledger.call_model(run_id, replies, users, _read_results(messages), check=False)
    message_id, _, script = users[-1].partition(" ")
    latest = max(index for index, message in enumerate(messages) if isinstance(message, User))
    steps: list[Step] = json.loads(script)
    done = sum(isinstance(message, Reply) for message in messages[latest:])
    if done >= len(steps):
        return [], f"answer to {message_id}"
    return _make_calls(f"{message_id}.{done}", steps[done]), ""


def _read_results(messages: Sequence[Message]) -> dict[str, Any]:
    return {each.call_id: each.content for each in messages if isinstance(each, ToolResult)}


def _make_calls(prefix: str, step: Step) -> list[ToolCall]:
    return [
        ToolCall(id=f"{prefix}.{index}", name=name, arguments=arguments) for index, (name, arguments) in enumerate(step)
    ]


async def child(steps: list[Any]) -> str:
    """Run another agent."""
    SCRIPTED.get().begin("idempotent", "")
    result = await current_call().run(ACTOR, make_prompt(steps))
    return str(result.output)


async def pair(left: list[Any], right: list[Any]) -> str:
    """Run two agents at the same time."""
    SCRIPTED.get().begin("idempotent", "")
    call = current_call()
    results = await asyncio.gather(*(call.run(ACTOR, make_prompt(steps)) for steps in (left, right)))
    return " ".join(str(result.output) for result in results)


ACTOR = ScriptedAgent("actor")
_TOOLS: list[Tool[..., Any]] = [*AGENT_TOOLS, Tool(child, effect="idempotent"), Tool(pair, effect="idempotent")]
_RETRY = Retry(max_tries=3)
