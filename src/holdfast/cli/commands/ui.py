"""holdfast ui"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from holdfast.app import App
from holdfast.cli.errors import CommandError
from holdfast.cli.loading import build_app, load_object
from holdfast.cli.options import StoreOption
from holdfast.cli.output import print_diagnostic
from holdfast.cli.stores import make_store
from holdfast.config import WorkerSettings


def ui(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="An App or agent: then the page also resumes its runs.")
    ] = "",
    store: StoreOption = "",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0: a free one.")] = 8300,
) -> None:
    """Show all runs of a store in the browser, and answer what waits for a person.

    Serves on this machine only, and prints a link with a token. The process executes no queued runs. Without an App
    the page reads, answers and cancels.
    """
    try:
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as exc:
        raise CommandError('the web page needs its extra: pip install "holdfast[web]"') from exc
    if target:
        app = build_app(load_object(target), target, store=store, create=False)
    else:
        app = App([], make_store(store), worker=WorkerSettings(take_runs=False, handle_signals=False))
    asyncio.run(serve_ui(app, port))


async def serve_ui(app: App, port: int, beside: Callable[[App], Awaitable[None]] | None = None) -> None:
    """Serve the page of `app` on this machine until a signal arrives. `beside` runs meanwhile."""
    from holdfast.web.server import serve_locally
    from holdfast.web.ui import make_ui
    from holdfast.web.ui.login import LinkLogin

    login = LinkLogin()
    async with app, serve_locally(make_ui(app, login=login), port) as url:
        print(url + login.path, flush=True)
        print_diagnostic("open this link; stop with Ctrl-C")
        task = asyncio.ensure_future(beside(app)) if beside is not None else None
        await wait_for_signal()
        if task is not None:
            task.cancel()


async def wait_for_signal() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
