"""holdfast worker"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated

import typer

from holdfast.app import App
from holdfast.cli.errors import CommandError, UsageError
from holdfast.cli.loading import build_app, load_object
from holdfast.cli.options import CodeArgument, CodeStoreOption, JsonOption, QuietOption
from holdfast.cli.output import print_diagnostic
from holdfast.cli.progress import JsonEventPrinter, ProgressDisplay, ProgressListener
from holdfast.cli.recycling import drain_over_memory, parse_size
from holdfast.cli.runner import report_force_quit, run_app
from holdfast.cli.worker_status import serve_status
from holdfast.core.observation.log import LIFECYCLE_LOG


def worker(
    code: CodeArgument,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", metavar="N", min=1, help="How many runs to execute at once.")
    ] = None,
    agents: Annotated[
        str, typer.Option("--agents", metavar="NAMES", help="Take only runs of these agents: names with commas.")
    ] = "",
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", metavar="N", min=1, help="Take N runs, let them end, and exit.")
    ] = None,
    max_memory: Annotated[
        str, typer.Option("--max-memory", metavar="SIZE", help="Drain and exit above this size, such as 2G or 800M.")
    ] = "",
    health_port: Annotated[
        int | None,
        typer.Option(
            "--health-port", metavar="N", min=0, max=65535, help="Serve /healthz and /metrics on this port; 0 for any."
        ),
    ] = None,
    health_host: Annotated[
        str,
        typer.Option("--health-host", metavar="ADDRESS", help="The address of /healthz and /metrics; 0.0.0.0 for all."),
    ] = "127.0.0.1",
    quiet: QuietOption = False,
    store: CodeStoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Execute queued and interrupted runs of these agents until stopped.

    SIGTERM and Ctrl-C drain: the worker claims no more runs, and interrupts its runs at their next step boundary for
    the other workers. --json prints events as lines of JSON.
    """
    memory_limit = parse_size(max_memory) if max_memory else None
    listener = JsonEventPrinter() if as_json else ProgressListener() if quiet else ProgressDisplay(many=True)
    if quiet:
        LIFECYCLE_LOG.setLevel(logging.WARNING)  # what needs a person is shown all the same
    app = build_app(load_object(code), code, store=store, create=True, listener=listener)
    if app.store is None:
        raise CommandError("this App has no store: name one with --store")
    app = configure_worker(app, agents=agents, concurrency=concurrency, max_runs=max_runs)

    async def work() -> None:
        async with AsyncExitStack() as stack:
            if health_port is not None:
                server = await stack.enter_async_context(serve_status(app, health_port, health_host))
                listener.print_status(f"health at {server.url}/healthz", "cyan")
            if memory_limit is not None:
                await stack.enter_async_context(drain_over_memory(app, memory_limit, listener))
            listener.print_status(f"serving {', '.join(sorted(app.agents))}; Ctrl-C or SIGTERM drains", "bold")
            await app.serve()

    with listener:
        asyncio.run(run_app(app, listener, work, on_force_quit=report_force_quit))
    print_diagnostic("drained")


def configure_worker(app: App, *, agents: str, concurrency: int | None, max_runs: int | None) -> App:
    """Return the App with the settings of the command in place of its own.

    Raises:
        UsageError: the App lacks an agent that `agents` names.
    """
    settings = app.worker_settings
    settings = replace(
        settings, concurrency=concurrency or settings.concurrency, max_runs=max_runs or settings.max_runs
    )
    names = [name.strip() for name in agents.split(",") if name.strip()] or sorted(app.agents)
    unknown = [name for name in names if name not in app.agents]
    if unknown:
        raise UsageError(f"no agent {', '.join(unknown)}: the App has {', '.join(sorted(app.agents)) or 'none'}")
    return app.replace(worker=settings, agents=[app.agents[name] for name in names])
