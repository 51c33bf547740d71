"""The W3C trace context of a caller outside this process: from the headers of a request, or from the environment."""

import contextlib
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from holdfast.core.ports import Telemetry
from holdfast.core.run.info import RunInfo

#: In a run's port data: the trace contexts of the `parent` of all attempts and of the `last` attempt, and
#: `waiting_since` in nanoseconds.
TRACE_KEY = "otel"

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_TRACESTATE = 512

_NONE: Mapping[str, str] = MappingProxyType({})
_current: ContextVar[Mapping[str, str]] = ContextVar("holdfast_trace_context", default=_NONE)


@contextlib.contextmanager
def continue_trace(headers: Mapping[str, str]) -> Iterator[None]:
    """Make runs that this task starts or submits belong to the trace in these headers. Without a valid one: do nothing.

    Args:
        headers: by their names in lower case: `traceparent` and `tracestate`.
    """
    carrier = _read_carrier(headers)
    if not carrier:
        yield
        return
    token = _current.set(carrier)
    try:
        yield
    finally:
        _current.reset(token)


def continue_environment_trace(environment: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
    """Make runs belong to the trace of the process that started this one, from TRACEPARENT and TRACESTATE."""
    names = ("traceparent", "tracestate")
    return continue_trace({name: environment[name.upper()] for name in names if name.upper() in environment})


def get_trace_context() -> Mapping[str, str]:
    """Return the trace context of the caller outside this process; empty if there is none."""
    return _current.get()


def annotate_submit(telemetry: Telemetry | None, info: RunInfo) -> Mapping[str, Any]:
    """Return the port data of a run that is submitted now: the trace context, for the worker that executes it."""
    if telemetry is not None:
        return telemetry.submit(info)
    carrier = get_trace_context()
    return {TRACE_KEY: {"parent": dict(carrier)}} if carrier else {}


def _read_carrier(headers: Mapping[str, str]) -> Mapping[str, str]:
    parent, state = headers.get("traceparent", ""), headers.get("tracestate", "")
    if not _TRACEPARENT.fullmatch(parent):
        return _NONE
    carrier = {"traceparent": parent}
    return carrier | {"tracestate": state} if 0 < len(state) <= _MAX_TRACESTATE else carrier
