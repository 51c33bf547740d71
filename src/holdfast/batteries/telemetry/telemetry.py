"""The telemetry port with OpenTelemetry: where a trace begins, and the instruments."""

from collections.abc import Mapping
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace import Link, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.batteries.telemetry.instruments import Instruments
from holdfast.batteries.telemetry.spans import RunSpans, make_run_attributes, to_carrier
from holdfast.clock import CLOCK, Clock
from holdfast.core.metrics import RunMetrics
from holdfast.core.run.info import RunInfo
from holdfast.core.run.state import RunState
from holdfast.core.telemetry_port import RunTelemetry
from holdfast.core.trace_context import TRACE_KEY, get_trace_context


class OpenTelemetry:
    """Traces of runs, by the GenAI semantic conventions, and metrics.

    All attempts of a run are in one trace, which `submit` carries to the worker; each links to the one before it. Child
    runs are below the tool call that started them. Without an SDK the API does nothing.
    """

    def __init__(
        self,
        tracer: trace.Tracer | None = None,
        meter: metrics.Meter | None = None,
        *,
        clock: Clock | None = None,
    ) -> None:
        """Make the port.

        Args:
            tracer: makes the spans. Default: that of the global tracer provider.
            meter: makes the instruments. Default: that of the global meter provider.
        """
        self._tracer = tracer or trace.get_tracer("holdfast")
        self._instruments = Instruments(meter or metrics.get_meter("holdfast"))
        self._clock = clock or CLOCK.get()

    def observe(self, metrics: RunMetrics) -> None:
        """Export these counters from now on."""
        self._instruments.observe(metrics)

    def submit(self, info: RunInfo) -> Mapping[str, Any]:
        """Record that the run was submitted, below the current span. Return port data with the trace context."""
        span = self._tracer.start_span(
            f"submit {info.agent_name}",
            context=_find_caller_context(),
            kind=SpanKind.PRODUCER,
            attributes=make_run_attributes(info),
        )
        span.end()
        carrier = to_carrier(span)
        return {TRACE_KEY: {"parent": carrier}} if carrier else {}

    def begin(self, info: RunInfo, state: RunState, *, inherits: bool, new_turn: bool) -> RunTelemetry:
        """Start the span of one attempt, and make it current in this task."""
        known: dict[str, Any] = state.port_data.get(TRACE_KEY) or {}
        if inherits:
            above = _find_caller_context()
        elif new_turn or "parent" not in known:
            above = otel_context.Context()
        else:
            above = TraceContextTextMapPropagator().extract(known["parent"], otel_context.Context())
        span = self._tracer.start_span(
            f"invoke_agent {info.agent_name}",
            context=above,
            kind=SpanKind.INTERNAL,
            links=_link_previous(known),
            attributes=make_run_attributes(info) | {"gen_ai.operation.name": "invoke_agent"},
            start_time=int(self._clock.now().timestamp() * 1e9),
        )
        own = to_carrier(span)
        # The parent of the next attempt: a run that no span started has its first attempt at the top of its trace.
        parent = to_carrier(trace.get_current_span(above)) or own
        if own:
            state.set_port_data(TRACE_KEY, {"parent": parent, "last": own})
        spans = RunSpans(self._tracer, self._instruments, self._clock, info, state, span, above)
        if (since := known.get("waiting_since")) is not None and not new_turn:
            spans.add_wait(since)
        return spans


def _find_caller_context() -> otel_context.Context:
    """Return the current context. If it has no span: that of the caller outside this process, if there is one."""
    current = otel_context.get_current()
    if trace.get_current_span(current).get_span_context().is_valid:
        return current
    return TraceContextTextMapPropagator().extract(get_trace_context(), current)


def _link_previous(known: Mapping[str, Any]) -> list[Link]:
    if "last" not in known:
        return []
    previous = TraceContextTextMapPropagator().extract(known["last"], otel_context.Context())
    return [Link(trace.get_current_span(previous).get_span_context(), {"holdfast.link": "previous attempt"})]
