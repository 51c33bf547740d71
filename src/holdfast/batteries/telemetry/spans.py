"""The spans of one attempt of a run: model calls, tool calls, retries and waits below it."""

from collections.abc import Mapping
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from holdfast.batteries.telemetry.instruments import Instruments
from holdfast.clock import Clock
from holdfast.core.observer import (
    AttemptControl,
    AttemptEnded,
    AttemptEnding,
    AttemptStarted,
    CallEnded,
    CallInDoubt,
    CallStarted,
    ModelAsked,
    ModelNamed,
    ObservedEvent,
    ReplyReceived,
    Retried,
    Saved,
    StepEnded,
)
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Usage
from holdfast.core.run.status import AttemptEnd
from holdfast.core.trace_context import TRACE_KEY, get_trace_context


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


class AttemptSpans:
    """The trace of one attempt. Its span is current in the attempt's task."""

    kinds: frozenset[type] = frozenset(
        {
            AttemptStarted,
            AttemptEnding,
            AttemptEnded,
            ModelAsked,
            ModelNamed,
            ReplyReceived,
            CallStarted,
            CallEnded,
            CallInDoubt,
            Retried,
            StepEnded,
            Saved,
        }
    )

    def __init__(self, tracer: trace.Tracer, instruments: Instruments, clock: Clock, attempt: AttemptControl) -> None:
        self._tracer, self._instruments, self._clock = tracer, instruments, clock
        self._info, self._state = attempt.info, attempt.state
        # A resumed run was claimed by a task that has another trace, or none. A child runs within a call of its parent.
        self._inherits = attempt.is_child or not attempt.resumed
        self._span: Span = trace.INVALID_SPAN
        self._context = otel_context.Context()
        self._model: Span | None = None
        self._asked_at = 0
        #: The attributes of the current model call that its metrics have too.
        self._model_attributes: dict[str, str] = {}
        self._replied_at: int | None = None
        self._usage_before = attempt.state.own_usage
        #: By call id: the span, and the context that was current before.
        self._calls: dict[str, tuple[Span, otel_context.Context]] = {}

    def observe(self, event: ObservedEvent) -> None:
        match event:
            case AttemptStarted():
                self._start(new_turn=event.new_turn)
            case ModelAsked():
                self._begin_model_call()
            case ModelNamed():
                self._name_model(event.model)
            case ReplyReceived():
                self._receive_reply(event.model)
            case CallStarted():
                self._begin_call(event)
            case CallEnded():
                self._end_call(event)
            case CallInDoubt():
                attributes = {"tool": event.call.tool, "call_id": event.call.call_id}
                self._span.add_event("in doubt", attributes, timestamp=self._now())
            case Retried():
                self._add_retry(event)
            case StepEnded():
                self._end_model_call()
                if event.took_seconds is not None:
                    self._instruments.add_step(self._info.agent_name, event.took_seconds)
            case Saved():
                self._instruments.add_save(self._info.agent_name, event.took_seconds)
            case AttemptEnding():
                self._keep_wait(event)
            case AttemptEnded():
                self._end(event)

    # -- the attempt --------------------------------------------------------------------------------------------

    def _start(self, *, new_turn: bool) -> None:
        """Start the span of the attempt, and make it current in this task."""
        known: dict[str, Any] = self._state.port_data.get(TRACE_KEY) or {}
        if self._inherits:
            above = find_caller_context()
        elif new_turn or "parent" not in known:
            above = otel_context.Context()
        else:
            above = TraceContextTextMapPropagator().extract(known["parent"], otel_context.Context())
        span = self._span = self._tracer.start_span(
            f"invoke_agent {self._info.agent_name}",
            context=above,
            kind=SpanKind.INTERNAL,
            links=_link_previous(known),
            attributes=make_run_attributes(self._info) | {"gen_ai.operation.name": "invoke_agent"},
            start_time=self._now(),
        )
        own = to_carrier(span)
        # The parent of the next attempt: a run that no span started has its first attempt at the top of its trace.
        parent = to_carrier(trace.get_current_span(above)) or own
        if own:
            self._state.set_port_data(TRACE_KEY, {"parent": parent, "last": own})
        self._context = trace.set_span_in_context(span, above)
        # Attached and never detached: the context belongs to the task of this attempt.
        otel_context.attach(self._context)
        if (since := known.get("waiting_since")) is not None and not new_turn:
            self._add_wait(since, above)

    def _add_wait(self, since: int, above: otel_context.Context) -> None:
        """Add the span of the wait that ends with this attempt."""
        attributes = {"holdfast.run_id": self._info.run_id}
        span = self._tracer.start_span("wait", context=above, attributes=attributes, start_time=since)
        span.end(end_time=max(since, self._now()))

    def _keep_wait(self, event: AttemptEnding) -> None:
        kept = self._state.port_data.get(TRACE_KEY)
        if kept is not None and event.end is AttemptEnd.WAITING:
            self._state.set_port_data(TRACE_KEY, {**kept, "waiting_since": self._now()})

    def _end(self, event: AttemptEnded) -> None:
        if event.error is not None and self._replied_at is None:
            self._fail_model_call(event.error)
        self._end_model_call()
        self._span.set_attributes(_make_usage_attributes(self._state.own_usage) | {"holdfast.end": event.end.value})
        if event.error is not None and event.end in (AttemptEnd.FAILED, AttemptEnd.CANCELLED):
            _set_error(self._span, event.error)
        self._span.end(end_time=self._now())

    # -- model calls --------------------------------------------------------------------------------------------

    def _begin_model_call(self) -> None:
        self._usage_before, self._asked_at, self._replied_at = self._state.own_usage, self._now(), None
        self._model_attributes = {"gen_ai.operation.name": "chat", "gen_ai.agent.name": self._info.agent_name}
        attributes: dict[str, Any] = {**self._model_attributes, "holdfast.step": self._state.steps + 1}
        if self._info.model_tier:
            attributes["holdfast.model_tier"] = self._info.model_tier
        self._model = self._tracer.start_span(
            "chat",
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=self._asked_at,
        )
        otel_context.attach(trace.set_span_in_context(self._model, self._context))

    def _name_model(self, name: str) -> None:
        """Add the model's name to its call. Frameworks write `provider:model`."""
        provider, colon, model = name.partition(":")
        if self._model is not None and name:
            self._model.update_name(f"chat {model if colon else name}")
            names = {"gen_ai.request.model": model if colon else name}
            if colon:
                names["gen_ai.provider.name"] = provider
            self._add_model_attributes(names)

    def _receive_reply(self, model: str) -> None:
        self._replied_at = self._now()
        if model:
            self._add_model_attributes({"gen_ai.response.model": model})
        otel_context.attach(self._context)

    def _add_model_attributes(self, attributes: Mapping[str, str]) -> None:
        if self._model is not None:
            self._model.set_attributes(attributes)
            self._model_attributes.update(attributes)

    def _end_model_call(self) -> None:
        if self._model is None:
            return
        used = self._state.own_usage - self._usage_before
        self._model.set_attributes(_make_usage_attributes(used))
        self._instruments.add_tokens(used, self._model_attributes)
        self._finish_model_call(self._model, self._replied_at or self._now())

    def _fail_model_call(self, error: BaseException) -> None:
        if self._model is not None:
            _set_error(self._model, error)
            self._model_attributes["error.type"] = type(error).__name__
            self._finish_model_call(self._model, self._now())
            otel_context.attach(self._context)

    def _finish_model_call(self, span: Span, ended_at: int) -> None:
        self._instruments.add_model_call((ended_at - self._asked_at) / 1e9, self._model_attributes)
        span.end(end_time=ended_at)
        self._model = None

    # -- tool calls ---------------------------------------------------------------------------------------------

    def _begin_call(self, event: CallStarted) -> None:
        self._end_model_call()
        call, before = event.call, otel_context.get_current()
        span = self._tracer.start_span(
            f"execute_tool {call.tool}",
            context=self._context,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.tool,
                "gen_ai.tool.call.id": call.call_id,
                "holdfast.effect": event.effect.value,
                "holdfast.step": call.step,
            },
            start_time=self._now(),
        )
        otel_context.attach(trace.set_span_in_context(span, self._context))
        self._calls[call.call_id] = span, before

    def _end_call(self, event: CallEnded) -> None:
        span, before = self._calls.pop(event.call.call_id)
        otel_context.attach(before)
        outcome = event.outcome if event.error is None else type(event.error).__name__
        span.set_attribute("holdfast.outcome", outcome)
        if outcome not in ("done", "waiting"):
            span.set_attribute("error.type", outcome)
            span.set_status(StatusCode.ERROR, outcome)
        span.end(end_time=self._now())

    def _add_retry(self, event: Retried) -> None:
        if not event.tool:
            self._fail_model_call(event.error)
        now = self._now()
        attributes: dict[str, Any] = {"holdfast.attempt": event.failed_tries, "error.type": type(event.error).__name__}
        span = self._tracer.start_span(f"retry {event.tool or 'model'}", attributes=attributes, start_time=now)
        span.end(end_time=now + int(event.delay.total_seconds() * 1e9))

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


def find_caller_context() -> otel_context.Context:
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
