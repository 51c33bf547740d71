"""The adapter's data in a run's annotations: pydantic-ai's counters, and deferred calls."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred
from pydantic_ai.tool_manager import ToolManager
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError, to_jsonable_python

from holdfast.core.errors import PayloadError
from holdfast.core.json_value import to_json_value
from holdfast.core.message import Usage
from holdfast.core.state import RunState

_ANNOTATION_KEY = "pydantic_ai"
_USAGE_ADAPTER = TypeAdapter(RunUsage)


@dataclass(frozen=True, slots=True)
class Deferral:
    """A call that waits for an answer."""

    kind: Literal["approval", "external"]
    #: Plain data. Stored while the call waits: without it the answer would be taken for the call's result.
    metadata: dict[str, Any] | None = None

    @classmethod
    def create(cls, kind: Literal["approval", "external"], metadata: dict[str, Any] | None) -> "Deferral":
        """Return a deferral with this metadata, lowered to JSON.

        Raises:
            PayloadError: the metadata cannot be stored.
        """
        try:
            return cls(kind, to_json_value(to_jsonable_python(metadata), "the metadata of a call that waits"))
        except PydanticSerializationError as exc:
            raise PayloadError(f"the metadata of a call that waits cannot be stored: {exc}") from exc

    def to_exception(self) -> ApprovalRequired | CallDeferred:
        """Return the exception that defers the call."""
        return (ApprovalRequired if self.kind == "approval" else CallDeferred)(self.metadata)


class AdapterState:
    """The adapter's state of one run. `write_to` puts changes into the run's state; the next save stores them."""

    def __init__(self, state: RunState) -> None:
        kept: dict[str, Any] = state.annotations.get(_ANNOTATION_KEY, {})
        #: pydantic-ai's own count, which pydantic-ai updates in place.
        self.usage: RunUsage = _USAGE_ADAPTER.validate_python(kept["usage"]) if "usage" in kept else RunUsage()
        #: By call id.
        self.deferred = {call: Deferral(**each) for call, each in kept.get("deferred", {}).items()}
        #: Calls that waited for an answer or for other calls, and were started.
        self.started: list[str] = list(kept.get("begun", ()))
        #: Calls of the open reply for which there is no tool.
        self.unknown_calls: list[str] = list(kept.get("unknown", ()))
        self.output_retries: int = kept.get("output_retries", 0)
        self.tool_retries: dict[str, int] = dict(kept.get("tool_retries", {}))
        self._last_counts = _read_counts(self.usage)

    def write_to(self, state: RunState) -> None:
        """Put this into the run's annotations as new objects: a save compares them with those it saved last."""
        kept: dict[str, Any] = {"usage": {name: value for name, value in vars(self.usage).items() if value}}
        if self.usage.cost is not None:
            kept["usage"]["cost"] = str(self.usage.cost)
        if self.deferred:
            kept["deferred"] = {
                call: {"kind": each.kind, "metadata": each.metadata} for call, each in self.deferred.items()
            }
        if self.started:
            kept["begun"] = list(self.started)
        if self.unknown_calls:
            kept["unknown"] = list(self.unknown_calls)
        if self.output_retries:
            kept["output_retries"] = self.output_retries
        if self.tool_retries:
            kept["tool_retries"] = dict(self.tool_retries)
        state.annotations[_ANNOTATION_KEY] = kept

    def start_phase(self) -> None:
        """Reset all but the usage for the next phase."""
        self.end_batch()
        self.output_retries, self.tool_retries = 0, {}

    def start_turn(self) -> None:
        """Reset everything for the next turn of a conversation: pydantic-ai's limits hold for a turn."""
        self.start_phase()
        self.usage = RunUsage()
        self._last_counts = _read_counts(self.usage)

    def end_batch(self) -> None:
        """Forget the calls of a reply that is answered."""
        self.deferred, self.started, self.unknown_calls = {}, [], []

    def record_retries(self, manager: ToolManager[Any], output_retries: int) -> None:
        """Record the retries of tools and output, which pydantic-ai counts per process."""
        before = manager.ctx.retries if manager.ctx is not None else {}
        self.tool_retries = {tool: count for tool, count in before.items() if tool not in manager.succeeded_tools}
        for tool in manager.failed_tools:
            self.tool_retries[tool] = before.get(tool, 0) + 1
        self.output_retries = output_retries

    def restore_tool_retries(self, manager: ToolManager[Any] | None) -> None:
        """Give pydantic-ai the recorded retries, once; it counts on from them."""
        if self.tool_retries and manager is not None and manager.ctx is not None and not manager.ctx.retries:
            manager.ctx.retries.update(self.tool_retries)

    def take_usage(self) -> Usage | None:
        """Return the usage since the last count, if any. Tool calls are counted by `StepContext`."""
        before, now = self._last_counts, _read_counts(self.usage)
        if now == before:
            return None
        self._last_counts = now
        return Usage(
            input_tokens=now[0] - before[0],
            output_tokens=now[1] - before[1],
            reasoning_tokens=now[2] - before[2],
            requests=now[3] - before[3],
            cost_usd=float((now[4] or 0) - (before[4] or 0)),
        )


def _read_counts(usage: RunUsage) -> tuple[int, int, int, int, Decimal | None]:
    return usage.input_tokens, usage.output_tokens, usage.output_reasoning_tokens, usage.requests, usage.cost
