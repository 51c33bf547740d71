"""All ports at once: they record each call, and raise where a test asks for it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from holdfast.core.agents.tool import Tool, tool
from holdfast.core.observer import (
    PUBLIC_EVENTS,
    AttemptControl,
    AttemptEnded,
    AttemptStarted,
    CallAnswered,
    CallEnded,
    CallInDoubt,
    ObservedEvent,
    Retried,
    StepEnded,
)
from holdfast.core.ports import Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.run_events import Event, PhaseStarted, ToolCalled, ToolReturned
from holdfast.core.run.state import RunState


class PortFailed(Exception):
    pass


class RecordingPorts:
    """All ports in one: records each call, and raises where a test asks for it."""

    def __init__(self, breaks_at: str = "", error: Callable[[], Exception] = PortFailed) -> None:
        self._breaks_at, self._error = breaks_at, error
        self.calls: list[str] = []
        self.control: AttemptControl | None = None
        self.limit: timedelta | None = None
        self.errors: list[BaseException] = []

    def _record(self, what: str, detail: str = "") -> None:
        self.calls.append(f"{what} {detail}".strip())
        if what == self._breaks_at:
            raise self._error()

    @property
    def ports(self) -> Ports:
        return Ports(
            observers=(RecordingAudit(self),),
            budget=RecordingBudget(self),
            critic=RecordingCritic(self),
            listener=RecordingListener(self),
            extra_tools=RecordingToolProvider(self),
        )

    def get_calls(self, port: str) -> list[str]:
        return [heard for heard in self.calls if heard.startswith(port)]


class RecordingAudit:
    kinds: frozenset[type] = frozenset(
        {AttemptStarted, AttemptEnded, StepEnded, CallEnded, CallInDoubt, CallAnswered, Retried}
    )

    def __init__(self, ports: RecordingPorts, attempt: AttemptControl | None = None) -> None:
        self._ports, self._record, self._attempt = ports, ports._record, attempt

    def begin(self, attempt: AttemptControl) -> "RecordingAudit":
        self._record("audit.begin", attempt.info.run_id)
        return RecordingAudit(self._ports, attempt)

    def observe(self, event: ObservedEvent) -> None:
        assert self._attempt is not None
        state = self._attempt.state
        match event:
            case AttemptStarted():
                self._record("audit.start", "resumed" if self._attempt.resumed else "new")
            case StepEnded():
                self._record("audit.step", f"{state.steps} {state.own_usage.requests}")
            case CallEnded(outcome="done" | "error"):
                how = "failed" if event.outcome == "error" else "fine"
                self._record("audit.tool", f"{event.call.tool} {event.effect} {how}")
            case CallInDoubt() | CallAnswered() | Retried():
                self._record("audit.event", type(event).__name__)
            case AttemptEnded():
                error = type(event.error).__name__ if event.error else "no error"
                self._record("audit.close", f"{event.end} {state.own_usage.requests} {error}")


class RecordingBudget:
    def __init__(self, ports: RecordingPorts) -> None:
        self._record = ports._record

    async def check(self, info: RunInfo, state: RunState) -> None:
        self._record("budget.check", str(state.steps))

    async def commit(self, info: RunInfo, state: RunState) -> None:
        self._record("budget.commit", f"{state.steps} {state.own_usage.requests}")


class RecordingCritic:
    kinds: frozenset[type] = PUBLIC_EVENTS | {AttemptEnded}

    def __init__(self, ports: RecordingPorts) -> None:
        self._record, self._ports = ports._record, ports

    def begin(self, attempt: AttemptControl, max_runtime: timedelta | None) -> "RecordingCritic":
        self._ports.control, self._ports.limit = attempt, max_runtime
        self._record("critic.begin")
        return self

    def observe(self, event: ObservedEvent) -> None:
        self._record("critic.close" if isinstance(event, AttemptEnded) else "critic.activity")


class RecordingListener:
    def __init__(self, ports: RecordingPorts) -> None:
        self._record, self._ports = ports._record, ports

    async def on_event(self, info: RunInfo, event: Event) -> None:
        self._record("listener.event", f"{event.type} {event.step} {_get_name(event)}".strip())

    async def on_output(self, info: RunInfo, output: Any) -> None:
        self._record("listener.output", str(output))

    async def on_error(self, info: RunInfo, error: BaseException) -> None:
        self._ports.errors.append(error)
        self._record("listener.error", type(error).__name__)


class RecordingToolProvider:
    def __init__(self, ports: RecordingPorts) -> None:
        self._record = ports._record

    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        self._record("extra_tools.tools")

        @tool(effect="pure")
        async def extra() -> str:
            return "extra"

        return [extra]


def _get_name(event: Event) -> str:
    match event:
        case PhaseStarted():
            return event.name
        case ToolCalled() | ToolReturned():
            return event.tool
    return ""
