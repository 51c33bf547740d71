"""All ports at once: they record each call, and raise where a test asks for it."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from holdfast.core.agents.tool import Tool, tool
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.ports import AttemptControl, Ports
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Usage
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
            audit=RecordingAudit(self),
            budget=RecordingBudget(self),
            critic=RecordingCritic(self),
            listener=RecordingListener(self),
            extra_tools=RecordingToolProvider(self),
        )

    def get_calls(self, port: str) -> list[str]:
        return [heard for heard in self.calls if heard.startswith(port)]


class RecordingAudit:
    def __init__(self, ports: RecordingPorts) -> None:
        self._record = ports._record

    def begin(self, info: RunInfo, state: RunState) -> "RecordingAudit":
        self._record("audit.begin", info.run_id)
        return self

    def start(self, *, resumed: bool) -> None:
        self._record("audit.start", "resumed" if resumed else "new")

    def step(self, step: int, usage: Usage) -> None:
        self._record("audit.step", f"{step} {usage.requests}")

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None:
        self._record("audit.tool", f"{call.tool} {effect} {'failed' if error else 'fine'}")

    def event(self, name: str, detail: str) -> None:
        self._record("audit.event", name)

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None:
        self._record("audit.close", f"{status} {usage.requests} {type(error).__name__ if error else 'no error'}")


class RecordingBudget:
    def __init__(self, ports: RecordingPorts) -> None:
        self._record = ports._record

    async def check(self, info: RunInfo, state: RunState) -> None:
        self._record("budget.check", str(state.steps))

    async def commit(self, info: RunInfo, state: RunState) -> None:
        self._record("budget.commit", f"{state.steps} {state.own_usage.requests}")


class RecordingCritic:
    def __init__(self, ports: RecordingPorts) -> None:
        self._record, self._ports = ports._record, ports

    def begin(
        self, info: RunInfo, state: RunState, control: AttemptControl, max_runtime: timedelta | None
    ) -> "RecordingCritic":
        self._ports.control, self._ports.limit = control, max_runtime
        self._record("critic.begin")
        return self

    def activity(self) -> None:
        self._record("critic.activity")

    def close(self) -> None:
        self._record("critic.close")


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
