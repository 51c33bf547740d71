"""Telemetry with OpenTelemetry: an observer factory, the trace of a submitted run, and the instruments."""

from collections.abc import Mapping
from typing import Any

from opentelemetry import metrics, trace
from opentelemetry.trace import SpanKind

from holdfast.batteries.telemetry.instruments import Instruments
from holdfast.batteries.telemetry.spans import AttemptSpans, find_caller_context, make_run_attributes, to_carrier
from holdfast.clock import CLOCK, Clock
from holdfast.core.metrics import RunMetrics
from holdfast.core.observer import AttemptControl
from holdfast.core.run.info import RunInfo
from holdfast.core.trace_context import TRACE_KEY


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

    def export(self, metrics: RunMetrics) -> None:
        """Export these counters from now on."""
        self._instruments.export(metrics)

    def submit(self, info: RunInfo) -> Mapping[str, Any]:
        """Record that the run was submitted, below the current span. Return port data with the trace context."""
        span = self._tracer.start_span(
            f"submit {info.agent_name}",
            context=find_caller_context(),
            kind=SpanKind.PRODUCER,
            attributes=make_run_attributes(info),
        )
        span.end()
        carrier = to_carrier(span)
        return {TRACE_KEY: {"parent": carrier}} if carrier else {}

    def begin(self, attempt: AttemptControl) -> AttemptSpans:
        """Trace one attempt."""
        return AttemptSpans(self._tracer, self._instruments, self._clock, attempt)
