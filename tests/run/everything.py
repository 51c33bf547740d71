"""All ports at once, writing down what they are asked; they raise where they are told to."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from holdfast.run.call import CallContext
from holdfast.run.info import RunInfo
from holdfast.run.ports import Ports, RunControl, RunEvent
from holdfast.run.state import RunState
from holdfast.run.tool import Tool, tool
from holdfast.run.usage import Usage


class PortBroke(Exception):
    pass


class Everything:
    """All ports in one, writing down what they are asked; raises where it is told to."""

    def __init__(self, breaks_at: str = "", error: Callable[[], Exception] = PortBroke) -> None:
        self._breaks_at, self._error = breaks_at, error
        self.heard: list[str] = []
        self.control: RunControl | None = None
        self.limit: timedelta | None = None
        self.errors: list[BaseException] = []

    def _hear(self, what: str, detail: str = "") -> None:
        self.heard.append(f"{what} {detail}".strip())
        if what == self._breaks_at:
            raise self._error()

    @property
    def ports(self) -> Ports:
        return Ports(
            audit=AuditPart(self), budget=BudgetPart(self), critic=CriticPart(self), delivery=DeliveryPart(self),
            palette=PalettePart(self),
        )  # fmt: skip

    def of(self, port: str) -> list[str]:
        return [heard for heard in self.heard if heard.startswith(port)]


class AuditPart:
    def __init__(self, whole: Everything) -> None:
        self._hear = whole._hear

    def begin(self, info: RunInfo, state: RunState) -> "AuditPart":
        self._hear("audit.begin", info.run_id)
        return self

    def start(self, *, resumed: bool) -> None:
        self._hear("audit.start", "resumed" if resumed else "new")

    def step(self, iteration: int, usage: Usage) -> None:
        self._hear("audit.step", f"{iteration} {usage.requests}")

    def tool(self, call: CallContext, *, effect: str, error: bool, took: timedelta) -> None:
        self._hear("audit.tool", f"{call.tool} {effect} {'failed' if error else 'fine'}")

    def event(self, name: str, detail: str) -> None:
        self._hear("audit.event", name)

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None:
        self._hear("audit.close", f"{status} {usage.requests} {type(error).__name__ if error else 'no error'}")


class BudgetPart:
    def __init__(self, whole: Everything) -> None:
        self._hear = whole._hear

    async def check(self, info: RunInfo, state: RunState) -> None:
        self._hear("budget.check", str(state.iteration))

    async def commit(self, info: RunInfo, state: RunState) -> None:
        self._hear("budget.commit", f"{state.iteration} {state.own_usage.requests}")


class CriticPart:
    def __init__(self, whole: Everything) -> None:
        self._hear, self._whole = whole._hear, whole

    def begin(self, info: RunInfo, state: RunState, control: RunControl, max_runtime: timedelta | None) -> "CriticPart":
        self._whole.control, self._whole.limit = control, max_runtime
        self._hear("critic.begin")
        return self

    def activity(self) -> None:
        self._hear("critic.activity")

    def close(self) -> None:
        self._hear("critic.close")


class DeliveryPart:
    def __init__(self, whole: Everything) -> None:
        self._hear, self._whole = whole._hear, whole

    async def progress(self, info: RunInfo, event: RunEvent) -> None:
        self._hear("delivery.progress", f"{event.kind} {event.iteration} {event.name}".strip())

    async def output(self, info: RunInfo, output: Any) -> None:
        self._hear("delivery.output", str(output))

    async def error(self, info: RunInfo, error: BaseException) -> None:
        self._whole.errors.append(error)
        self._hear("delivery.error", type(error).__name__)


class PalettePart:
    def __init__(self, whole: Everything) -> None:
        self._hear = whole._hear

    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        self._hear("palette.tools")

        @tool(effect="pure")
        async def extra() -> str:
            return "extra"

        return [extra]
