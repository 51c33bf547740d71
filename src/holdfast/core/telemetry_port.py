"""The telemetry port: traces of runs. `holdfast.batteries.telemetry` implements it with OpenTelemetry."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.metrics import RunMetrics
from holdfast.core.run.info import RunInfo
from holdfast.core.run.state import RunState


class RunTelemetry(Protocol):
    """The trace of one attempt of a run. Methods return at once."""

    def begin_model_call(self) -> None:
        """The model is asked now. What the current task does belongs to this call."""
        ...

    def receive_reply(self) -> None:
        """The model has replied."""
        ...

    def end_model_call(self) -> None:
        """The usage of the reply is counted in the state."""
        ...

    def begin_tool(self, call: ToolContext, effect: str) -> Any:
        """A tool is called now. Returns a handle for `end_tool`. What the current task does belongs to this call."""
        ...

    def end_tool(self, handle: Any, outcome: str) -> None:
        """The call has ended, in the same task.

        Args:
            outcome: `done`, `error`, `waiting`, or the class of the exception that stopped the call.
        """
        ...

    def retry(self, tool: str, attempt: int, delay: timedelta, error: BaseException) -> None:
        """An attempt of the tool, or of the model if that is empty, failed. The next one follows after `delay`."""
        ...

    def event(self, name: str, **attributes: str) -> None:
        """Something else has happened, such as a call in doubt."""
        ...

    def end_step(self, took: timedelta) -> None: ...

    def add_save(self, took: timedelta) -> None: ...

    def prepare_end(self, end: str) -> None:
        """The attempt ends. What the next attempt needs goes into the port data now: it is saved after this."""
        ...

    def close(self, end: str, error: BaseException | None) -> None:
        """The checkpoint is finalized."""
        ...


@runtime_checkable
class Telemetry(Protocol):
    """Exports what runs do."""

    def observe(self, metrics: RunMetrics) -> None:
        """Export these counters from now on."""
        ...

    def submit(self, info: RunInfo) -> Mapping[str, Any]:
        """A run is submitted here: return port data with the trace context, for the worker that executes it."""
        ...

    def begin(self, info: RunInfo, state: RunState, *, inherits: bool, new_turn: bool) -> RunTelemetry:
        """Begin the trace of one attempt. What the next attempt needs goes into the port data.

        Args:
            inherits: the caller's trace context is that of this task. Otherwise it is in the port data.
            new_turn: a turn of a conversation begins, with a trace of its own.
        """
        ...
