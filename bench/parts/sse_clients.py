"""500 clients of event streams on one process that executes 50 runs: how late durable events arrive.

Each run takes a step a second; its tool returns the time. The delay of a tool result is the time from then until a
client has read the event: it includes the commit to SQLite. The raw limit is a bare Starlette endpoint: it sends the
same texts to the same number of clients from queues in memory. Each server is a process of its own.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from holdfast import Agent, App, Reply, ToolCall, WorkerSettings, tool
from holdfast.core import Message, ToolSchema
from holdfast.web.api import make_api
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.server import HOST, serve_locally

ROOT = Path(__file__).parent.parent.parent
RUNS, CLIENTS, STEPS, STEP_SECONDS = 50, 500, 10, 1.0
#: The runs begin when all clients are connected.
CONNECT_SECONDS = 5.0

_SENT = re.compile(rb'"sent":([0-9.]+)')
_PADDING = "x" * 500


# -- the servers, each in a process of its own --------------------------------------------------------------------


async def serve_holdfast(folder: str) -> None:
    @tool(effect="pure")
    async def look(step: int) -> dict[str, object]:
        """Return the time."""
        await asyncio.sleep(STEP_SECONDS)
        return {"sent": time.time(), "padding": _PADDING}

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        done = sum(isinstance(message, Reply) for message in messages)
        if done == STEPS:
            return Reply(text="done")
        return Reply(tool_calls=[ToolCall(id=f"c{done}", name="look", arguments={"step": done})])

    agent = Agent(name="looker", model=model, tools=[look])
    settings = WorkerSettings(concurrency=RUNS)
    app = App([agent], f"sqlite:{folder}/runs.db", worker=settings)
    api = make_api(app, authorize=lambda request: LOCAL_PRINCIPAL)
    async with app, serve_locally(api, 0) as url:
        begin = datetime.now(UTC) + timedelta(seconds=CONNECT_SECONDS)
        for run in range(RUNS):
            await app.submit(agent, "go", run_id=f"r{run}", not_before=begin)
        print(url, flush=True)
        await asyncio.Event().wait()


async def serve_bare(folder: str) -> None:
    queues: dict[str, list[asyncio.Queue[bytes | None]]] = {f"r{run}": [] for run in range(RUNS)}

    async def publish(name: str) -> None:
        for _ in range(STEPS):
            await asyncio.sleep(STEP_SECONDS)
            body = json.dumps({"sent": time.time(), "padding": _PADDING}, separators=(",", ":"))
            for queue in queues[name]:
                queue.put_nowait(f"event: tool_result\ndata: {body}\n\n".encode())
        for queue in queues[name]:
            queue.put_nowait(None)

    async def stream(name: str) -> AsyncGenerator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        queues[name].append(queue)
        while (frame := await queue.get()) is not None:
            yield frame

    async def events(request: Request) -> StreamingResponse:
        return StreamingResponse(stream(request.path_params["run_id"]), media_type="text/event-stream")

    async with serve_locally(Starlette(routes=[Route("/runs/{run_id}/events", events)]), 0) as url:
        print(url, flush=True)
        await asyncio.sleep(CONNECT_SECONDS)
        await asyncio.gather(*map(publish, queues))
        await asyncio.Event().wait()


SERVERS = {"bare": serve_bare, "holdfast": serve_holdfast}


# -- the clients --------------------------------------------------------------------------------------------------


async def read_delays(port: int, run_id: str) -> list[float]:
    """Read the stream of a run to its end. Return the delay of each tool result."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(f"GET /runs/{run_id}/events HTTP/1.1\r\nhost: {HOST}:{port}\r\nconnection: close\r\n\r\n".encode())
    delays = [time.time() - float(sent[1]) async for line in reader if (sent := _SENT.search(line))]
    writer.close()
    return delays


async def measure_clients(url: str) -> list[float]:
    port = int(url.rpartition(":")[2])
    found = await asyncio.gather(*(read_delays(port, f"r{client % RUNS}") for client in range(CLIENTS)))
    return [delay for delays in found for delay in delays]


def measure(kind: str) -> tuple[float, float, int]:
    """Return the median and the 99th percentile of the delays in seconds, and how many there were."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
        command = [sys.executable, "-m", "bench.parts.sse_clients", "--serve", kind, "--folder", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                delays = asyncio.run(measure_clients(server.stdout.readline().strip()))
            finally:
                server.kill()
    cuts = statistics.quantiles(delays, n=100)
    return statistics.median(delays), cuts[98], len(delays)


def main() -> None:
    """Print the delays of both, and the ratio of their 99th percentiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", choices=SERVERS)
    parser.add_argument("--folder", default="")
    given = parser.parse_args()
    if given.serve:
        asyncio.run(SERVERS[given.serve](given.folder))
        return
    ratios = []
    for _ in range(given.rounds):
        late = {}
        for kind in SERVERS:
            median, late[kind], number = measure(kind)
            print(f"{kind:<9} {number:6,} events  median {median * 1000:7.1f} ms  p99 {late[kind] * 1000:7.1f} ms")
        ratios.append(late["holdfast"] / late["bare"])
    print(f"p99 of holdfast is {statistics.median(ratios):.1f} times that of the bare endpoint", flush=True)


if __name__ == "__main__":
    main()
