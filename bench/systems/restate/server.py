"""Restate's server as a process of its own, and the agent that it calls, both on loopback.

The server's settings are its defaults: what it acknowledges has been synced to the disk.
"""

import asyncio
import ctypes
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import restate
from bench.systems.protocol import Job
from bench.systems.restate.agent import service as agent_service
from hypercorn.asyncio import serve
from hypercorn.config import Config

#: More than any run needs; a server that is gone is noticed by its process.
_NO_TIMEOUT = httpx.Timeout(None)
_NO_LIMIT = 2**31 - 1


class Server:
    """A server that has its data in the job's folder. It ends with this process, however this process ends."""

    def __init__(self, job: Job) -> None:
        self._folder = Path(job["folder"])
        self.ingress, self.admin, fabric = (f"127.0.0.1:{free_port()}" for _ in range(3))
        settings = {
            "RESTATE_INGRESS__BIND_ADDRESS": self.ingress,
            "RESTATE_ADMIN__BIND_ADDRESS": self.admin,
            "RESTATE_BIND_ADDRESS": fabric,
            "RESTATE_ADVERTISED_ADDRESS": f"http://{fabric}",
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_NODE_NAME": "bench",
            "RESTATE_BASE_DIR": str(self._folder / "restate-data"),
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "error",
        }
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [program(), "--no-logo"], env=os.environ | settings, stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        limits = httpx.Limits(max_connections=None)
        self._client = httpx.AsyncClient(base_url=f"http://{self.ingress}", timeout=_NO_TIMEOUT, limits=limits)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> None:
        """Returns once the server answers queries."""
        while True:
            if await self._answer("select id from sys_invocation limit 1") is not None:
                return
            await asyncio.sleep(0.02)

    async def register(self, port: int) -> None:
        (await self._ask("deployments", {"uri": f"http://127.0.0.1:{port}"})).raise_for_status()

    async def run(self, steps: int, size: int) -> None:
        """Have the agent run, and wait for its end."""
        await self.call("agent/run", {"steps": steps, "bytes": size})

    async def call(self, handler: str, sizes: dict[str, int]) -> None:
        """Call a handler, and wait for its end."""
        (await self._client.post(f"/{handler}", json=sizes)).raise_for_status()

    async def until_unfinished(self, runs: int) -> None:
        """Wait until the server knows this many unfinished runs. It answers only when it has started."""
        while True:
            found = await self._answer("select id from sys_invocation where status != 'completed'")
            if found is not None and len(found) == runs:
                return
            await asyncio.sleep(0.02)

    async def stop(self, *, orderly: bool = False) -> None:
        self._process.terminate() if orderly else self._process.kill()
        self._process.wait()
        await self._client.aclose()

    async def _answer(self, sql: str) -> list[dict[str, Any]] | None:
        try:
            answer = await self._ask("query", {"query": sql})
        except httpx.TransportError:
            answer = None
        if self._process.poll() is not None:
            raise RuntimeError(f"the server is gone:\n{(self._folder / 'server.log').read_text()[-2000:]}")
        return answer.json()["rows"] if answer is not None and answer.is_success else None

    async def _ask(self, path: str, body: dict[str, Any]) -> httpx.Response:
        url = f"http://{self.admin}/{path}"
        return await self._client.post(url, json=body, headers={"accept": "application/json"})


@asynccontextmanager
async def serving(job: Job, service: restate.Service = agent_service) -> AsyncIterator[Server]:
    """A server that calls the service of this process: a new one, or the one that the folder has from before."""
    known = Path(job["folder"]) / "port"
    port = int(known.read_text()) if known.exists() else free_port()
    async with listening(port, service):
        server = Server(job)
        try:
            if not known.exists():
                await server.ready()
                await server.register(port)
                known.write_text(str(port))
            yield server
        finally:
            await server.stop()


@asynccontextmanager
async def listening(port: int, service: restate.Service | restate.Workflow) -> AsyncIterator[None]:
    """The service answers on this port. Hypercorn's limits are raised as Restate's documentation says."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "ERROR"
    config.h2_max_concurrent_streams = _NO_LIMIT
    config.keep_alive_max_requests = _NO_LIMIT
    config.keep_alive_timeout = _NO_LIMIT
    config.graceful_timeout = 1
    over = asyncio.Event()

    async def until_over() -> None:
        await over.wait()

    serving = asyncio.create_task(serve(restate.app([service]), config, shutdown_trigger=until_over))
    yield
    over.set()
    await serving


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port: int = chosen.getsockname()[1]
        return port


def program() -> Path:
    """The server of the npm package that is installed in this environment."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}[platform.machine()]
    package = f"restate-server-{sys.platform}-{machine}"
    return Path(sys.prefix) / "node_modules" / "@restatedev" / package / "bin" / "restate-server"


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 is PR_SET_PDEATHSIG
