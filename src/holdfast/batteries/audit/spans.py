"""The audit as OpenTelemetry spans: one span per attempt of a run, a child span per tool call, an event per step."""

from datetime import timedelta
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanContext, StatusCode, TraceFlags

from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.info import RunInfo
from holdfast.core.message import Usage
from holdfast.core.ports import Recorder
from holdfast.core.state import RunState
from holdfast.core.tool_context import ToolContext

#: Key of the span's ids in the run's annotations. The next attempt links to that span.
ANNOTATION_KEY = "otel"


class Spans:
    """An audit port that writes spans instead of rows. A resumed run links to the span of its previous attempt."""

    def __init__(self, tracer: trace.Tracer | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._tracer = tracer or trace.get_tracer("holdfast")
        self._clock = clock

    def begin(self, info: RunInfo, state: RunState) -> Recorder:
        """Start the span of one attempt of a run."""
        return RunSpan(self._tracer, self._clock, info, state)


class RunSpan:
    """The span of one attempt of one run."""

    def __init__(self, tracer: trace.Tracer, clock: Clock, info: RunInfo, state: RunState) -> None:
        self._tracer, self._clock = tracer, clock
        attributes = {
            "holdfast.run_id": info.run_id,
            "holdfast.agent": info.agent_name,
            "holdfast.caller_id": info.caller_id,
            "holdfast.parent_run_id": info.parent_run_id or "",
        }
        self._span: Span = tracer.start_span(
            f"run {info.agent_name}", links=_link_previous_attempt(state), attributes=attributes, start_time=self._now()
        )
        context = self._span.get_span_context()
        state.annotations[ANNOTATION_KEY] = {"trace": f"{context.trace_id:032x}", "span": f"{context.span_id:016x}"}

    def start(self, *, resumed: bool) -> None:
        """Mark whether the run was resumed."""
        self._span.set_attribute("holdfast.resumed", resumed)

    def step(self, step: int, usage: Usage) -> None:
        """Add an event for a finished step."""
        self._span.add_event("step", _usage_attributes(usage) | {"holdfast.step": step}, timestamp=self._now())

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None:
        """Add a span for a finished tool call, without its arguments."""
        end = self._now()
        attributes = {"holdfast.call_id": call.call_id, "holdfast.effect": effect}
        span = self._tracer.start_span(
            f"tool {call.tool}",
            context=trace.set_span_in_context(self._span),
            attributes=attributes,
            start_time=end - int(took.total_seconds() * 1e9),
        )
        if error:
            span.set_status(StatusCode.ERROR)
        span.end(end_time=end)

    def event(self, name: str, detail: str) -> None:
        """Add any other event."""
        self._span.add_event(name, {"detail": detail}, timestamp=self._now())

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None:
        """End the span: the run ended, or was interrupted."""
        self._span.set_attributes(_usage_attributes(usage) | {"holdfast.outcome": status})
        if error is not None and status == "fail":
            self._span.set_status(StatusCode.ERROR, type(error).__name__)
        self._span.end(end_time=self._now())

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1e9)


def _link_previous_attempt(state: RunState) -> list[Link]:
    annotation: Any = state.annotations.get(ANNOTATION_KEY)
    if not annotation:
        return []
    context = SpanContext(
        int(annotation["trace"], 16),
        int(annotation["span"], 16),
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
    return [Link(context, {"holdfast.link": "previous attempt of the same run"})]


def _usage_attributes(usage: Usage) -> dict[str, Any]:
    return {
        "holdfast.input_tokens": usage.input_tokens,
        "holdfast.output_tokens": usage.output_tokens,
        "holdfast.cost_usd": usage.cost_usd,
    }
