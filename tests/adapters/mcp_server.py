"""An MCP server over stdio: `python mcp_server.py FOLDER`. What it does to the world is in FOLDER/world, for good."""

import os
import sys
from pathlib import Path

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

FOLDER = Path(sys.argv[1])
server = MCPServer("errands")


async def _done(ctx: "Context[object]", tool: str, city: str) -> None:
    """The call has taken effect. If FOLDER/hold names it, its answer never comes."""
    key = (ctx.request_context.meta or {}).get("idempotency_key", "")
    with (FOLDER / "world").open("a") as world:
        world.write(f"{tool} {city} {key}\n")
        world.flush()
        os.fsync(world.fileno())
    if f"{tool} {city}" in (FOLDER / "hold").read_text().splitlines():
        await anyio.sleep_forever()


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look(city: str, ctx: "Context[object]") -> str:
    await _done(ctx, "look", city)
    return f"{city} is warm"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
async def reserve(city: str, ctx: "Context[object]") -> str:
    await _done(ctx, "reserve", city)
    return f"reserved {city}"


@server.tool()
async def pay(city: str, ctx: "Context[object]") -> dict[str, str]:
    await _done(ctx, "pay", city)
    return {"paid": city}


@server.tool()
async def ship(city: str, ctx: "Context[object]") -> str:
    await _done(ctx, "ship", city)
    return f"shipped to {city}"


if __name__ == "__main__":
    with (FOLDER / "servers").open("a") as servers:
        servers.write(f"{os.getpid()} {os.getppid()}\n")
    server.run()
