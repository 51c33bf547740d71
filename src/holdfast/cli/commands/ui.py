"""holdfast ui"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated

import typer

from holdfast.app import App
from holdfast.batteries.schedule import Schedule, TablesJobs
from holdfast.cli.errors import CommandError
from holdfast.cli.loading import build_app, load_object
from holdfast.cli.options import StoreOption
from holdfast.cli.output import print_diagnostic
from holdfast.cli.stores import make_store, resolve_store_url
from holdfast.config import WorkerSettings
from holdfast.db.tables import TablesError
from holdfast.db.url import tables_from_url


def ui(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="An App or agent: then the page also starts and resumes runs.")
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
        raise CommandError('the web UI needs its extra: pip install "holdfast[web]"') from exc
    url: str | None = resolve_store_url(store)
    if target:
        found = load_object(target)
        app = build_app(found, target, store=store, create=False)
        if isinstance(found, App) and not store:
            url = found.store_url
    else:
        app = App([], make_store(store), worker=WorkerSettings(take_runs=False, handle_signals=False))
    asyncio.run(serve_ui(app, port, make_schedule(app, url)))


def make_schedule(app: App, url: str | None) -> Schedule | None:
    """Return the schedule in the database of the store; `None` if it has none."""
    with suppress(TablesError):  # such as a store in memory
        return Schedule(app.submit, jobs=TablesJobs(tables_from_url(url))) if url else None
    return None


async def serve_ui(
    app: App, port: int, schedule: Schedule | None, beside: Callable[[App], Awaitable[None]] | None = None
) -> None:
    """Serve the page of `app` on this machine until a signal arrives. `beside` runs meanwhile. Closes the schedule."""
    from holdfast.web.server import serve_locally
    from holdfast.web.ui import make_ui
    from holdfast.web.ui.login import LinkLogin

    login = LinkLogin()
    async with app, serve_locally(make_ui(app, login=login, schedule=schedule), port) as url:
        print(url + login.path, flush=True)
        print_diagnostic("open this link; stop with Ctrl-C")
        task = asyncio.ensure_future(beside(app)) if beside is not None else None
        try:
            await wait_for_signal()
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            if schedule is not None:
                await schedule.close()


async def wait_for_signal() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()
