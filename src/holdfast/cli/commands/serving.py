"""Commands that stay: worker with its memory bound and probes, serve, ui, mcp."""

import asyncio
import ipaddress
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from holdfast.app import App
from holdfast.batteries.schedule import Schedule
from holdfast.cli.listeners import JsonEventPrinter, ProgressDisplay, ProgressListener
from holdfast.cli.loading import build_app, load_object
from holdfast.cli.opening import make_store
from holdfast.cli.options import CodeArgument, CodeStoreOption, JsonOption, QuietOption, StoreOption
from holdfast.cli.output import CommandError, UsageError, print_diagnostic
from holdfast.cli.run_session import report_force_quit, run_app
from holdfast.config import WorkerSettings
from holdfast.core.log import LIFECYCLE_LOG
from holdfast.runtime.status_server import CONTENT_TYPE, StatusResponse, StatusServer
from holdfast.web.kill_switch import KillSwitch

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

    Its tools list runs, show one, and list what waits for a person. Tools that change something exist only if --allow
    names them. The process executes no runs. It ends when its client closes stdin.
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


def serve(
    code: CodeArgument,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0 for any.")] = 8000,
    socket: Annotated[
        Path | None, typer.Option("--socket", metavar="PATH", help="Serve on this Unix socket, without a token.")
    ] = None,
    quiet: QuietOption = False,
    store: CodeStoreOption = "",
) -> None:
    """Serve the HTTP API of an App to programs on this machine, and execute its runs as a worker does.

    Requests need the printed token, or the one in HOLDFAST_TOKEN, as `Authorization: Bearer TOKEN`.

    SIGTERM and Ctrl-C drain. To serve other machines, mount the API in a web application with an authorize function.
    """
    try:
        from starlette.routing import Mount

        from holdfast.web.api import make_api
        from holdfast.web.security import LocalToken, WebApplication
        from holdfast.web.server import serve_locally
    except ModuleNotFoundError as exc:
        raise CommandError(f'serve needs {exc.name}: pip install "holdfast[web]"') from exc
    listener = ProgressListener() if quiet else ProgressDisplay(many=True)
    if quiet:
        LIFECYCLE_LOG.setLevel(logging.WARNING)  # what needs a person is shown all the same
    app = build_app(load_object(code), code, store=store, create=True, listener=listener)
    if app.store is None:
        raise CommandError("this App has no store: name one with --store")
    given = os.environ.get("HOLDFAST_TOKEN", "")
    login = LocalToken(given) if socket is None else None
    api = make_api(app, authorize=None if login is None else login.authorize)
    site = WebApplication(app, [Mount("/api", api)])

    async def work() -> None:
        async with serve_locally(site, port, path=socket) as url:
            if login is not None and not given:
                print(login.token, flush=True)
            listener.print_status(f"serving {', '.join(sorted(app.agents))} at {url}/api; Ctrl-C drains", "bold")
            await app.serve()

    with listener:
        asyncio.run(run_app(app, listener, work, on_force_quit=report_force_quit))
    print_diagnostic("drained")


def ui(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="An App or agent: then the page also starts and resumes runs.")
    ] = "",
    store: StoreOption = "",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0 picks a free one.")
    ] = 8300,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="The address to listen on; needs --token-file unless loopback."),
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="PATH", help="A file with the token that the link needs.")
    ] = None,
) -> None:
    """Show all runs of a store in the browser, and answer what waits for a person.

    Serves on this machine only, unless --host names another address, and prints a link with a token. The process
    executes no queued runs. Without an App the page reads, answers and cancels.
    """
    if not _is_loopback(host) and token_file is None:
        raise UsageError(
            f"--host {host} lets others connect: give a token with --token-file, and use TLS in front of it"
        )
    token = "" if token_file is None else _read_token(token_file)
    try:
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as exc:
        raise CommandError('the web UI needs its extra: pip install "holdfast[web]"') from exc
    if target:
        app = build_app(load_object(target), target, store=store, create=False)
    else:
        app = App([], make_store(store), worker=WorkerSettings(take_runs=False, handle_signals=False))
    asyncio.run(serve_ui(app if app.has_schedule else app.replace(schedule=Schedule()), port, host=host, token=token))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
        is_shared = path.stat().st_mode & 0o077
    except (OSError, UnicodeDecodeError) as exc:
        raise CommandError(f"the token file {path} cannot be read: {exc}") from exc
    if not token:
        raise CommandError(f"the token file {path} is empty: write 16 characters or more into it")
    if is_shared:
        print_diagnostic(f"other users can read the token file {path}: run chmod 600 {path}")
    return token


async def serve_ui(
    app: App,
    port: int,
    beside: Callable[[App], Awaitable[None]] | None = None,
    *,
    host: str = "127.0.0.1",
    token: str = "",
    kill_switch: KillSwitch | None = None,
) -> None:
    """Serve the page of `app` until a signal arrives, or `beside`, which runs meanwhile, fails."""
    from holdfast.web.security import LinkLogin
    from holdfast.web.server import serve_locally
    from holdfast.web.ui.application import build_ui

    login = LinkLogin(token)
    async with app, serve_locally(build_ui(app, login=login, kill_switch=kill_switch), port, host=host) as url:
        # A token that the user has chosen stays in its file.
        print(f"{url}/login?token=TOKEN" if token else url + login.path, flush=True)
        print_diagnostic("open this link; stop with Ctrl-C")
        tasks = [asyncio.ensure_future(wait_for_signal())]
        if beside is not None:
            tasks.append(asyncio.ensure_future(beside(app)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def wait_for_signal() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await stopped.wait()


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_CHECK_INTERVAL_S = 1.0


def parse_size(given: str) -> int:
    """Return the bytes of a size such as `800M` or `1.5G`.

    Raises:
        UsageError: it has another form.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?", given.strip(), re.IGNORECASE)
    size = int(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if size < 1:
        raise UsageError(f"--max-memory {given!r} is not valid: give a size such as 800M or 2G")
    return size


def read_memory() -> int:
    """Return the bytes of memory that this process occupies; where the system does not tell, at its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * resource.getpagesize()


@asynccontextmanager
async def drain_over_memory(app: App, limit: int, listener: ProgressListener) -> AsyncIterator[None]:
    """Shut the App down when the process occupies more than `limit` bytes, while the context is open."""
    draining = False

    async def watch() -> None:
        nonlocal draining
        # First the pause: a worker with too low a limit gets some work done between two restarts.
        await asyncio.sleep(_CHECK_INTERVAL_S)
        while read_memory() <= limit:  # noqa: ASYNC110 - the system sends no event
            await asyncio.sleep(_CHECK_INTERVAL_S)
        listener.print_status(f"over {limit >> 20} MB of memory: stopping after the current step", "yellow")
        draining = True
        await app.shutdown()

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        if not draining:
            task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def serve_status(app: App, port: int, host: str) -> AsyncIterator[StatusServer]:
    """Serve the status of an open App while the context is open.

    Raises:
        CommandError: the port cannot be used.
    """

    async def answer_health() -> StatusResponse:
        problem = await app.find_problem()
        if problem:
            return StatusResponse(status=HTTPStatus.SERVICE_UNAVAILABLE, body=f"{problem}\n")
        return StatusResponse(body="ok\n")

    async def answer_metrics() -> StatusResponse:
        return StatusResponse(body=await app.render_metrics(), content_type=CONTENT_TYPE)

    server = StatusServer(port, host=host)
    server.add_route("/healthz", answer_health)
    server.add_route("/metrics", answer_metrics)
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(server)
        except OSError as exc:
            reason = os.strerror(exc.errno) if exc.errno else str(exc)
            raise CommandError(f"port {port} of {host} cannot be used: {reason}; choose another --health-port") from exc
        yield server


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
