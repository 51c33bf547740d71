"""The transaction of one call: what its function writes to the store's database, and its result, commit together."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.concurrency import shielded
from holdfast.core.agents.calls import CallRequest
from holdfast.core.agents.tool import CONNECTION
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.errors import RunError
from holdfast.core.execution.attempt import Attempt
from holdfast.core.run.messages import ONE_TOOL_CALL
from holdfast.core.run.state import StepCalls, StepEnd


class CallTransaction:
    """Calls the function of a `transaction` tool. A try that fails leaves nothing in the database."""

    def __init__(self, attempt: Attempt, request: CallRequest, record: Callable[..., None]) -> None:
        """Make the transaction of a call that is about to be made.

        Args:
            record: puts the result of a call into the state; `ToolCalls` has it.
        """
        self._attempt, self._request, self._record = attempt, request, record
        #: The result, in the state. It is committed when the call has returned.
        self.result: Any = None
        #: The current try. `None`: the call has ended, and a function that still works in its thread commits nothing.
        self._try: object | None = None
        #: Done when the commit of the result has ended, well or not. `None`: no commit is in progress.
        self._committed: asyncio.Future[None] | None = None

    def add_to(self, context: ToolContext) -> ToolContext:
        """Return the context of the call with its transaction. It starts no child runs, which would outlive it."""
        return msgspec.structs.replace(context, transaction=self, children=None)

    async def execute(self) -> Any:
        """Make the call and return its result. One that is committed stays, whatever stopped the call meanwhile."""
        try:
            result = await self._request.execute()
        except (Exception, asyncio.CancelledError):
            if self._committed is not None:  # the commit in progress decides
                await shielded(self._committed, suppress_cancel=True)
            if self.result is None:
                raise
            return self.result
        finally:
            self._try = None
        return result if self.result is None else self.result

    async def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call the function with a connection, and commit its writes with its result. Return what it returned."""
        current = self._try = object()
        started_at = self._attempt.services.clock.monotonic()

        async def call(connection: Any) -> Any:
            return await function(**arguments, **{CONNECTION: connection})

        def call_in_thread(connection: Any) -> Any:
            return function(**arguments, **{CONNECTION: connection})

        work = call_in_thread if self._request.in_thread else call
        try:
            return await self._attempt.saver.transact(work, partial(self._add_result, current, started_at))
        finally:
            if self._try is current:
                self._try = None
            if self._committed is not None:
                self._committed.set_result(None)
                self._committed = None

    def _add_result(self, current: object, started_at: float, value: Any) -> Callable[[], None]:
        """Put the result into the state, and return a function that removes it."""
        if current is not self._try:
            raise RunError(f"the call of {self._request.tool} has ended: its writes are rolled back")
        result, state = self._request.value_result(value), self._attempt.state
        calls, step_end = state.calls, state.step_end
        self._record(self._request, result, None, ONE_TOOL_CALL, started_at)
        self.result = result
        self._committed = asyncio.get_running_loop().create_future()
        return partial(self._remove_result, calls, step_end)

    def _remove_result(self, calls: StepCalls, step_end: StepEnd) -> None:
        state, call_id, result = self._attempt.state, self._request.call_id, self.result
        self.result = None
        state.own_usage = state.own_usage - ONE_TOOL_CALL
        if self._request.number:
            state.reopen_call(call_id, result, calls, step_end)
        else:
            del state.results[call_id]
