"""An agent with an MCP server as a child process; and a process that runs or resumes it."""

import asyncio
import json
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from fastmcp.client.transports import StdioTransport
from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai import RunContext, ToolDefinition
from pydantic_ai.mcp import CallToolFunc, MCPToolset
from tests.adapters.scripted_model import ScriptedModel, call, get_texts

from holdfast import Agent, App, current_call
from holdfast.adapters.pydantic_ai import ToolPolicy, durable
from holdfast.core.agents.calls import NOT_EXECUTED, Completed, InDoubt, Reconciliation
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import RunParked
from holdfast.core.run.result import Result

RUN = "errands"
SERVER = Path(__file__).with_name("mcp_server.py")
BATCH = [
    call("c1", "look", city="Lyon"), call("c2", "pay", city="Lyon"), call("c3", "look", city="Bonn"),
    call("c4", "reserve", city="Bonn"), call("c5", "pay", city="Bonn"), call("c6", "ship", city="Bonn"),
]  # fmt: skip


def server(folder: Path) -> MCPToolset[Any]:
    """The server's tools. Each call carries its idempotency key."""

    async def with_key(ctx: RunContext[Any], call_tool: CallToolFunc, name: str, arguments: dict[str, Any]) -> Any:
        return await call_tool(name, arguments, metadata={"idempotency_key": current_call().idempotency_key})

    started = StdioTransport(sys.executable, [str(SERVER), str(folder)], keep_alive=False)
    return MCPToolset(started, process_tool_call=with_key, init_timeout=60)


def hinted(tool: ToolDefinition) -> ToolPolicy | None:
    """The effect that the server claims for its tool."""
    hints = (tool.metadata or {}).get("annotations") or {}
    if hints.get("readOnlyHint"):
        return ToolPolicy("pure")
    return ToolPolicy("idempotent") if hints.get("idempotentHint") else None


def mcp_agent(
    folder: Path,
    script: ScriptedModel,
    *,
    effects: dict[str, str] | None = None,
    metadata: dict[str, str] | None = None,
    in_doubt: InDoubt = "report",
) -> Agent:
    """An agent that has nothing but the server's tools.

    Args:
        effects: of some tools, in place of what the server claims.
        metadata: said of all tools of the server.
        in_doubt: what is done about a payment in doubt.
    """

    async def shipped(context: ToolContext) -> Completed | Reconciliation:
        sent = f"ship {context.arguments['city']} {context.idempotency_key}"
        return Completed("it has left") if sent in (folder / "world").read_text().splitlines() else NOT_EXECUTED

    known = {"ship": ToolPolicy(reconcile=shipped), "pay": ToolPolicy(in_doubt=in_doubt)}
    tools = server(folder).with_metadata(**metadata or {})
    agent: PydanticAIAgent[None, str] = PydanticAIAgent(script.model, name="errands", toolsets=[tools])
    if effects is not None:
        return durable(agent, tools={name: ToolPolicy(effect) for name, effect in effects.items()})
    return durable(agent, tools=lambda tool: known.get(tool.name) or hinted(tool))


async def _run_agent(folder: Path, kind: str, options: dict[str, Any]) -> None:
    script = ScriptedModel(BATCH, [call("c7", "pay", city="Faro")], "done")
    agent = mcp_agent(folder, script, **options)
    async with App([agent], f"sqlite:{folder / 'runs.db'}", worker=False) as app:
        if kind == "answer":
            await app.unpark(RUN, resolutions={"c5": {"paid": "by hand"}})
        going: Awaitable[Result] = app.run(agent, "go", run_id=RUN) if kind == "run" else app.resume(RUN)
        try:
            result = await going
        except RunParked as parked:
            print(json.dumps({"parked": [parked.reason, parked.detail]}))
        else:
            results = [content for kind, content in get_texts(list(result.messages)) if kind == "tool-return"]
            print(json.dumps({"output": result.output, "asked": len(script.asked), "results": results}))


if __name__ == "__main__":
    asyncio.run(_run_agent(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])))
