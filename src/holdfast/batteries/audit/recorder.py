"""The recorder of one run."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.batteries.audit.rows import AuditRow, Kind
from holdfast.clock import Clock
from holdfast.run.call import CallContext
from holdfast.run.errors import described
from holdfast.run.info import RunInfo
from holdfast.run.redaction import Redact
from holdfast.run.usage import NO_USAGE, Usage


class RunRecorder:
    """Turns what happens in one run into rows. Returns at once."""

    def __init__(self, info: RunInfo, redact: Redact, clock: Clock, put: Callable[[AuditRow], None]) -> None:
        self._info, self._redact, self._clock, self._put = info, redact, clock, put

    def start(self, *, resumed: bool) -> None:
        """The run begins, or goes on."""
        self._record("start", status="resumed" if resumed else "begun")

    def step(self, iteration: int, usage: Usage) -> None:
        """A step is finished."""
        self._record("step", usage, iteration=iteration)

    def tool(self, call: CallContext, *, effect: str, error: bool, took: timedelta) -> None:
        """A tool call was made."""
        self._record(
            "tool",
            name=call.tool,
            call_id=call.call_id,
            effect=effect,
            arguments=self._redact(call.arguments),
            failed=error,
            took_seconds=took.total_seconds(),
        )

    def event(self, name: str, detail: str) -> None:
        """Something else worth knowing."""
        self._record("event", name=name, detail=self._redact(detail))

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None:
        """The run is over, or left."""
        detail = "" if error is None else self._redact(described(error))
        self._record("end", usage, status=status, failed=error is not None, detail=detail)

    def _record(self, kind: Kind, usage: Usage = NO_USAGE, **more: Any) -> None:
        self._put(
            AuditRow(
                at=self._clock.now(),
                kind=kind,
                run_id=self._info.run_id,
                agent_name=self._info.agent_name,
                caller_id=self._info.caller_id,
                parent_run_id=self._info.parent_run_id,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cost_usd=usage.cost_usd,
                **more,
            )
        )
