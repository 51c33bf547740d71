"""The audit as OpenTelemetry spans: one per run, with one per tool call and an event per step below it."""

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

#: Where the run's span is kept among its notes, so that a later life can link to it.
ANNOTATION_KEY = "otel"


class Spans:
    """An audit port that writes spans instead of rows. A resumed run links to the span of its earlier life."""

    def __init__(self, tracer: trace.Tracer | None = None, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._tracer = tracer or trace.get_tracer("holdfast")
        self._clock = clock

    def begin(self, info: RunInfo, state: RunState) -> Recorder:
        """Start the span of one run, or of one life of it."""
        return RunSpan(self._tracer, self._clock, info, state)


class RunSpan:
    """The span of one life of one run."""

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
        """The run begins, or goes on."""
        self._span.set_attribute("holdfast.resumed", resumed)

    def step(self, step: int, usage: Usage) -> None:
        """A step is finished."""
        self._span.add_event("step", _format_usage(usage) | {"holdfast.step": step}, timestamp=self._now())

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None:
        """A tool call was made. Its arguments are not put into spans."""
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
        """Something else worth knowing."""
        self._span.add_event(name, {"detail": detail}, timestamp=self._now())

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None:
        """The run is over, or left."""
        self._span.set_attributes(_format_usage(usage) | {"holdfast.outcome": status})
        if error is not None and status == "fail":
            self._span.set_status(StatusCode.ERROR, type(error).__name__)
        self._span.end(end_time=self._now())

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1e9)


def _link_previous_attempt(state: RunState) -> list[Link]:
    note: Any = state.annotations.get(ANNOTATION_KEY)
    if not note:
        return []
    context = SpanContext(
        int(note["trace"], 16), int(note["span"], 16), is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
    )
    return [Link(context, {"holdfast.link": "previous attempt of the same run"})]


def _format_usage(usage: Usage) -> dict[str, Any]:
    return {
        "holdfast.input_tokens": usage.input_tokens,
        "holdfast.output_tokens": usage.output_tokens,
        "holdfast.cost_usd": usage.cost_usd,
    }
