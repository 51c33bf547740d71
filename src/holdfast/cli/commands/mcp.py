"""holdfast mcp"""

import asyncio
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from holdfast.app import App
from holdfast.cli.errors import CommandError, UsageError
from holdfast.cli.options import StoreOption
from holdfast.cli.stores import make_store
from holdfast.config import WorkerSettings

if TYPE_CHECKING:
    from holdfast.mcp.server import Change


def mcp(
    allow: Annotated[
        str,
        typer.Option("--allow", metavar="NAMES", help="What a client may change: answer, cancel, fork; with commas."),
    ] = "",
    store: StoreOption = "",
) -> None:
    """Serve the runs of a store to a coding assistant, over MCP on stdin and stdout.

    Its tools list runs, show one, and list what waits for a person. Those that change something are there only if
    --allow names them. The process executes no runs. It ends when its client closes stdin.
    """
    try:
        from holdfast.mcp.server import Change, make_server
    except ModuleNotFoundError as exc:
        raise CommandError(f'the MCP server needs {exc.name}: pip install "holdfast[mcp]"') from exc
    changes = _parse_changes(allow, get_args(Change))
    app = App([], make_store(store), worker=WorkerSettings(take_runs=False, handle_signals=False))

    async def work() -> None:
        async with app:
            await make_server(app, changes).run_stdio_async()

    asyncio.run(work())


def _parse_changes(given: str, known: tuple["Change", ...]) -> list["Change"]:
    names = {name.strip() for name in given.split(",")} - {""}
    if unknown := sorted(names.difference(known)):
        raise UsageError(f"--allow has {', '.join(unknown)}: it takes {', '.join(known)}, with commas between them")
    return [name for name in known if name in names]
