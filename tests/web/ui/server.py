"""A real server with the page of an App, in a thread with an event loop of its own."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from tests.web.ui.agents import build_agents

from holdfast.app import App
from holdfast.checkpoint.errors import RunNotFound
from holdfast.config import WorkerSettings
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui import make_ui

T = TypeVar("T")


def build_test_app(store: str) -> App:
    return App(build_agents(), store, worker=WorkerSettings(handle_signals=False))


def build_idle_app(store: str) -> App:
    """Return an App that takes no runs: they stay as they were stored."""
    return App(build_agents(), store, worker=WorkerSettings(take_runs=False, handle_signals=False))


def make_open_ui(app: App) -> Starlette:
    """Return the page for everyone: the tests open no link."""
    return make_ui(app, authorize=lambda request: LOCAL_PRINCIPAL)


class UIServer:
    """Serves `make_site(app)` on loopback while it is open. The App works off queued runs."""

    def __init__(
        self,
        store: str,
        make_site: Callable[[App], Starlette] = make_open_ui,
        build_app: Callable[[str], App] = build_test_app,
        root_path: str = "",
    ) -> None:
        self.app = build_app(store)
        self._make_site, self._root_path = make_site, root_path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> "UIServer":
        self._thread.start()
        assert self._ready.wait(60), "the server did not start"
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self.app:
            site = self._make_site(self.app)
            config = uvicorn.Config(
                site, log_level="warning", lifespan="off", timeout_graceful_shutdown=1, root_path=self._root_path
            )
            self._server = uvicorn.Server(config)
            self._ready.set()
            await self._server.serve(sockets=[self._listener])

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Await something on the event loop of the server."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def submit(self, agent: str, prompt: str, run_id: str, **options: Any) -> str:
        """Queue a run."""
        return self.call(self.app.submit(agent, prompt, run_id=run_id, **options))

    def wait_for(self, run_id: str, *statuses: str) -> None:
        """Wait until the run has one of these statuses."""

        async def poll() -> None:
            assert self.app.store is not None
            async with asyncio.timeout(60):
                while True:
                    with suppress(RunNotFound):  # another process is about to submit it
                        if (await self.app.get(run_id)).status in statuses:
                            return
                    await self.app.store.wait_for_change(timedelta(milliseconds=20))

        self.call(poll())
