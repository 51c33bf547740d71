"""holdfast serve"""

import asyncio
import logging
from typing import Annotated

import typer

from holdfast.cli.errors import CommandError
from holdfast.cli.loading import build_app, load_object
from holdfast.cli.options import CodeArgument, CodeStoreOption, QuietOption
from holdfast.cli.output import print_diagnostic
from holdfast.cli.progress import ProgressDisplay, ProgressListener
from holdfast.cli.runner import report_force_quit, run_app
from holdfast.core.observation.log import LIFECYCLE_LOG


def serve(
    code: CodeArgument,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0 for any.")] = 8000,
    quiet: QuietOption = False,
    store: CodeStoreOption = "",
) -> None:
    """Serve the HTTP API of an App to programs on this machine, and execute its runs as a worker does.

    SIGTERM and Ctrl-C drain. To serve other machines, mount the API in a web application with an authorize function.
    """
    try:
        from starlette.applications import Starlette
        from starlette.routing import Mount

        from holdfast.web.api import make_api
        from holdfast.web.server import serve_locally
    except ModuleNotFoundError as exc:
        raise CommandError(f'serve needs {exc.name}: pip install "holdfast[web]"') from exc
    listener = ProgressListener() if quiet else ProgressDisplay(many=True)
    if quiet:
        LIFECYCLE_LOG.setLevel(logging.WARNING)  # what needs a person is shown all the same
    app = build_app(load_object(code), code, store=store, create=True, listener=listener)
    if app.store is None:
        raise CommandError("this App has no store: name one with --store")
    site = Starlette(routes=[Mount("/api", make_api(app))])

    async def work() -> None:
        async with serve_locally(site, port) as url:
            listener.print_status(f"serving {', '.join(sorted(app.agents))} at {url}/api; Ctrl-C drains", "bold")
            await app.serve()

    with listener:
        asyncio.run(run_app(app, listener, work, on_force_quit=report_force_quit))
    print_diagnostic("drained")
