"""A small HTTP server for probes and scrapers: health, and metrics as Prometheus text.

Labels are the names of agents and a few fixed words: never a run id or a caller.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from itertools import accumulate
from types import TracebackType
from typing import Self

from holdfast.checkpoint.errors import StoreError
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import RunCount, measure_queues
from holdfast.clock import Clock
from holdfast.core.metrics import BUCKETS, AgentMetrics, Histogram, RunMetrics
from holdfast.runtime.worker import Worker

log = logging.getLogger("holdfast.status")

#: A request line with its headers may be this long.
_MAX_REQUEST_BYTES = 16_384

#: How long a client may take to send its request and to read the response.
_CLIENT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResponse:
    """The response of a route."""

    body: str
    status: HTTPStatus = HTTPStatus.OK
    content_type: str = "text/plain; charset=utf-8"


#: Answers GET requests for one path. An exception is logged and answered with status 500.
StatusHandler = Callable[[], Awaitable[StatusResponse]]


class StatusServer:
    """Serves GET and HEAD requests. Used as `async with StatusServer(port) as server:`."""

    def __init__(self, port: int, *, host: str = "127.0.0.1") -> None:
        """Listen on nothing yet.

        Args:
            port: 0 for any free one.
            host: the address to listen on. The server has no authentication: other hosts reach it if this allows it.
        """
        self._host, self._port = host, port
        self._routes: dict[str, StatusHandler] = {}
        self._server: asyncio.Server | None = None

    def add_route(self, path: str, handler: StatusHandler) -> None:
        """Answer requests for `path` with what `handler` returns. May be called while the server is open."""
        self._routes[path] = handler

    @property
    def port(self) -> int:
        """The port that the open server listens on."""
        if self._server is None or not self._server.sockets:
            return self._port
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def url(self) -> str:
        """The address of the open server."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            OSError: the port is in use, or the host is not an address of this machine.
        """
        self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_MAX_REQUEST_BYTES)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            # Not `wait_closed`, which would wait for a client that has sent no request yet.
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        try:
            async with asyncio.timeout(_CLIENT_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(request))
                await writer.drain()
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            pass  # a client that left, stalled or sent no HTTP gets no response
        finally:
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        handler = self._routes.get(path)
        if method not in ("GET", "HEAD"):
            response = StatusResponse(status=HTTPStatus.METHOD_NOT_ALLOWED, body="only GET and HEAD\n")
        elif handler is None:
            response = StatusResponse(status=HTTPStatus.NOT_FOUND, body=f"known paths: {' '.join(self._routes)}\n")
        else:
            response = await _call_handler(path, handler)
        return _encode(response, with_body=method != "HEAD")


async def _call_handler(path: str, handler: StatusHandler) -> StatusResponse:
    try:
        return await handler()
    except Exception as exc:  # a probe must not end the worker
        log.error("%s could not be answered", path, exc_info=exc)
        return StatusResponse(status=HTTPStatus.INTERNAL_SERVER_ERROR, body="error: see the log of the worker\n")


def _encode(response: StatusResponse, *, with_body: bool) -> bytes:
    body = response.body.encode()
    head = (
        f"HTTP/1.1 {response.status.value} {response.status.phrase}\r\n"
        f"Content-Type: {response.content_type}\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + (body if with_body else b"")


#: How long the store has to answer. Kubernetes by default waits for one second, a load balancer longer.
STORE_TIMEOUT = timedelta(seconds=2)


class HealthCheck:
    """Looks at a worker and its store."""

    def __init__(self, store: RunStore, worker: Worker, clock: Clock) -> None:
        self._store, self._worker, self._clock = store, worker, clock
        #: The query that the store has not answered yet. There is one at a time, however many probes come.
        self._asking: asyncio.Task[Sequence[str]] | None = None

    async def find_problem(self) -> str:
        """Return why the worker takes no runs now; empty if it can take some."""
        if not self._worker.is_taking_runs:
            return "draining: this worker takes no more runs"
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_store())
        asking, timeout = self._asking, asyncio.create_task(self._clock.sleep(STORE_TIMEOUT))
        try:
            await asyncio.wait({asking, timeout}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timeout.cancel()
        if not asking.done():
            return f"the store has not answered within {STORE_TIMEOUT.total_seconds():g} seconds"
        self._asking = None
        error = None if asking.cancelled() else asking.exception()
        return "" if error is None else f"the store fails: {error}"

    async def _ask_store(self) -> Sequence[str]:
        try:
            return (await self._store.pending(self._worker.worker_id)).cancels
        except StoreError:
            raise
        except Exception as exc:  # a store of a user's own may raise anything
            raise StoreError(f"{type(exc).__name__}: {exc}") from exc

    async def close(self) -> None:
        """Stop waiting for an answer."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Samples = Iterable[tuple[Mapping[str, str], float]]

#: The description, and the values of one agent with their labels, by name.
_COUNTERS: Mapping[str, tuple[str, Callable[[AgentMetrics], _Samples]]] = {
    "holdfast_attempts_total": (
        "Attempts of runs that ended in this process.",
        lambda agent: [({"end": end}, count) for end, count in sorted(agent.attempts.items())],
    ),
    "holdfast_retries_total": (
        "Calls that failed and were retried.",
        lambda agent: [({"call": "model"}, agent.model_retries), ({"call": "tool"}, agent.tool_retries)],
    ),
    "holdfast_strikes_total": ("Attempts that began after one without a step.", lambda agent: [({}, agent.strikes)]),
    "holdfast_takeovers_total": ("Runs taken over from dead workers.", lambda agent: [({}, agent.takeovers)]),
    "holdfast_calls_in_doubt_total": ("Calls whose outcome is unknown.", lambda agent: [({}, agent.calls_in_doubt)]),
    "holdfast_failed_calls_total": (
        "Tool calls that failed.",
        lambda agent: [({"tool": tool}, count) for tool, count in sorted(agent.failed_calls.items())],
    ),
    "holdfast_tokens_total": (
        "Tokens of model calls.",
        lambda agent: [({"type": "input"}, agent.input_tokens), ({"type": "output"}, agent.output_tokens)],
    ),
    "holdfast_cost_usd_total": ("Cost of model calls.", lambda agent: [({}, agent.cost_usd)]),
}


def render_metrics(metrics: RunMetrics, counts: Sequence[RunCount], now: datetime) -> str:
    """Return the counters of this process, and the counts of its store, as text."""
    agents = sorted(metrics.agents.items())
    lines = _render_counts(counts, now)
    for name, (description, read) in _COUNTERS.items():
        samples = [({"agent": agent, **labels}, value) for agent, found in agents for labels, value in read(found)]
        lines += _render_family(name, "counter", description, samples)
    lines += _render_histograms(
        "holdfast_step_seconds", "Duration of steps.", [(agent, found.steps) for agent, found in agents]
    )
    lines += _render_histograms(
        "holdfast_save_seconds", "Time that runs waited for saves.", [(agent, found.saves) for agent, found in agents]
    )
    lines += _render_histograms(
        "holdfast_claim_checks_seconds",
        "Time that runs waited for checks of their claims.",
        [(agent, found.claim_checks) for agent, found in agents],
    )
    return "\n".join(lines) + "\n"


def _render_counts(counts: Sequence[RunCount], now: datetime) -> list[str]:
    runs = [({"agent": each.agent_name, "status": each.status.value}, each.count) for each in counts]
    queues = measure_queues(counts, now)
    due = {agent: depth for agent, (depth, _) in queues.items()}
    ages = {agent: age for agent, (_, age) in queues.items()}
    return [
        *_render_family("holdfast_runs", "gauge", "Runs in the store.", runs),
        *_render_family("holdfast_queue_depth", "gauge", "Runs that wait for a worker.", _by_agent(due)),
        *_render_family(
            "holdfast_queue_age_seconds", "gauge", "How long the oldest of them has waited.", _by_agent(ages)
        ),
    ]


def _by_agent(values: Mapping[str, float]) -> _Samples:
    return [({"agent": agent}, value) for agent, value in values.items()]


def _render_family(name: str, kind: str, description: str, samples: _Samples) -> list[str]:
    lines = [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]
    return lines + [f"{name}{_render_labels(labels)} {value:.12g}" for labels, value in samples]


def _render_histograms(name: str, description: str, found: Sequence[tuple[str, Histogram]]) -> list[str]:
    lines = [f"# HELP {name} {description}", f"# TYPE {name} histogram"]
    for agent, histogram in found:
        counts = list(accumulate(histogram.counts))
        for bound, count in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
            lines.append(f"{name}_bucket{_render_labels({'agent': agent, 'le': bound})} {count}")
        lines.append(f"{name}_sum{_render_labels({'agent': agent})} {histogram.total:.12g}")
        lines.append(f"{name}_count{_render_labels({'agent': agent})} {counts[-1]}")
    return lines


def _render_labels(labels: Mapping[str, str]) -> str:
    escaped = {
        name: value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
