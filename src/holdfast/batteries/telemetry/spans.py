"""The spans of one attempt of a run: model calls, tool calls, retries and waits below it."""

from datetime import timedelta
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.batteries.telemetry.instruments import Instruments
from holdfast.clock import Clock
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Usage
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd
from holdfast.core.trace_context import TRACE_KEY


def to_carrier(span: Span) -> dict[str, str]:
    """Return the W3C trace context of a span as plain data; empty if it has none."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(span, otel_context.Context()))
    return carrier


def make_run_attributes(info: RunInfo) -> dict[str, str]:
    """Return the attributes that name the run."""
    attributes = {
        "gen_ai.agent.name": info.agent_name,
        "gen_ai.agent.id": info.agent_id,
        "gen_ai.conversation.id": info.run_id if info.conversation else "",
        "holdfast.run_id": info.run_id,
        "holdfast.caller_id": info.caller_id,
        "holdfast.parent_run_id": info.parent_run_id or "",
    }
    return {name: value for name, value in attributes.items() if value}


class RunSpans:
    """The trace of one attempt."""

    def __init__(
        self,
        tracer: trace.Tracer,
        instruments: Instruments,
        clock: Clock,
        info: RunInfo,
        state: RunState,
        span: Span,
        above: otel_context.Context,
    ) -> None:
        self._tracer, self._instruments, self._clock = tracer, instruments, clock
        self._info, self._state, self._span, self._above = info, state, span, above
        self._context = trace.set_span_in_context(span, above)
        self._model: Span | None = None
        self._replied_at: int | None = None
        self._usage_before = state.own_usage
        # Attached and never detached: the context belongs to the task of this attempt.
        otel_context.attach(self._context)

    def add_wait(self, since: int) -> None:
        """Add the span of the wait that ends with this attempt."""
        attributes = {"holdfast.run_id": self._info.run_id}
        span = self._tracer.start_span("wait", context=self._above, attributes=attributes, start_time=since)
        span.end(end_time=max(since, self._now()))

    # -- model calls --------------------------------------------------------------------------------------------

    def begin_model_call(self) -> None:
        self._usage_before, self._replied_at = self._state.own_usage, None
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.agent.name": self._info.agent_name,
            "holdfast.step": self._state.steps + 1,
        }
        if self._info.model_tier:
            attributes["gen_ai.request.model"] = self._info.model_tier
        self._model = self._tracer.start_span(
            f"chat {self._info.model_tier or self._info.agent_name}",
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=self._now(),
        )
        otel_context.attach(trace.set_span_in_context(self._model, self._context))

    def receive_reply(self) -> None:
        self._replied_at = self._now()
        otel_context.attach(self._context)

    def end_model_call(self) -> None:
        if self._model is None:
            return
        used = self._state.own_usage - self._usage_before
        self._model.set_attributes(_make_usage_attributes(used))
        self._instruments.add_tokens(self._info.agent_name, used)
        self._model.end(end_time=self._replied_at or self._now())
        self._model = None

    def _fail_model_call(self, error: BaseException) -> None:
        if self._model is not None:
            _set_error(self._model, error)
            self._model.end(end_time=self._now())
            self._model = None
            otel_context.attach(self._context)

    # -- tool calls ---------------------------------------------------------------------------------------------

    def begin_tool(self, call: ToolContext, effect: str) -> Any:
        before = otel_context.get_current()
        span = self._tracer.start_span(
            f"execute_tool {call.tool}",
            context=self._context,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.tool,
                "gen_ai.tool.call.id": call.call_id,
                "holdfast.effect": effect,
                "holdfast.step": call.step,
            },
            start_time=self._now(),
        )
        otel_context.attach(trace.set_span_in_context(span, self._context))
        return span, before

    def end_tool(self, handle: Any, outcome: str) -> None:
        span, before = handle
        otel_context.attach(before)
        span.set_attribute("holdfast.outcome", outcome)
        if outcome not in ("done", "waiting"):
            span.set_attribute("error.type", outcome)
            span.set_status(StatusCode.ERROR, outcome)
        span.end(end_time=self._now())

    def retry(self, tool: str, attempt: int, delay: timedelta, error: BaseException) -> None:
        if not tool:
            self._fail_model_call(error)
        now = self._now()
        attributes: dict[str, Any] = {"holdfast.attempt": attempt, "error.type": type(error).__name__}
        span = self._tracer.start_span(f"retry {tool or 'model'}", attributes=attributes, start_time=now)
        span.end(end_time=now + int(delay.total_seconds() * 1e9))

    # -- the attempt --------------------------------------------------------------------------------------------

    def event(self, name: str, **attributes: str) -> None:
        self._span.add_event(name, attributes, timestamp=self._now())

    def end_step(self, took: timedelta) -> None:
        self._instruments.add_step(self._info.agent_name, took)

    def add_save(self, took: timedelta) -> None:
        self._instruments.add_save(self._info.agent_name, took)

    def prepare_end(self, end: str) -> None:
        kept = self._state.port_data.get(TRACE_KEY)
        if kept is not None and end == AttemptEnd.WAITING:
            self._state.set_port_data(TRACE_KEY, {**kept, "waiting_since": self._now()})

    def close(self, end: str, error: BaseException | None) -> None:
        if error is not None:
            self._fail_model_call(error)
        self.end_model_call()
        self._span.set_attributes(_make_usage_attributes(self._state.own_usage) | {"holdfast.end": end})
        if error is not None and end in (AttemptEnd.FAILED, AttemptEnd.CANCELLED):
            _set_error(self._span, error)
        self._span.end(end_time=self._now())

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1e9)


def _set_error(span: Span, error: BaseException) -> None:
    """Mark the span. Without the text of the error, which may be confidential."""
    span.set_attribute("error.type", type(error).__name__)
    span.set_status(StatusCode.ERROR, type(error).__name__)


def _make_usage_attributes(usage: Usage) -> dict[str, Any]:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "holdfast.cost_usd": usage.cost_usd,
    }
