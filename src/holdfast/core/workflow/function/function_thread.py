"""Workflows that are plain functions: the function runs in a thread, and its steps in the task of the workflow."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from holdfast.concurrency import run_in_background
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import CURRENT_WORKFLOW, find_workflow
from holdfast.core.agents.tool_threads import call_in_thread
from holdfast.core.errors import RunError
from holdfast.core.workflow.suspension import Unwind
from holdfast.core.workflow.workflow_run import WorkflowRun

T = TypeVar("T")


class _ThreadRequest:
    """A coroutine that the thread wants to be run, and its outcome."""

    __slots__ = ("future", "work")

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()

    def refuse(self) -> None:
        """End the function: its run is being stopped, or has ended."""
        self.work.close()
        self.future.set_exception(Unwind("a step was called while its workflow is unwound"))


class FunctionThread:
    """Runs the function of a workflow in a thread.

    The task of the workflow runs what the thread asks for, so a step is the same as that of an async function. The
    thread blocks meanwhile. When the run has to wait or stop, the step raises `Unwind` in the thread.
    """

    def __init__(self, run: WorkflowRun) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        #: `None`: the thread has ended.
        self._requests: asyncio.Queue[_ThreadRequest | None] = asyncio.Queue()
        #: The task was cancelled. It waits until the function has ended.
        self._cancel: asyncio.CancelledError | None = None
        self._is_closed = False

    # -- in the task of the workflow ----------------------------------------------------------------------------------

    async def call(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call the function in a thread, and return its result."""
        thread = run_in_background(call_in_thread(self._enter, {"function": function, "arguments": arguments}))
        thread.add_done_callback(self._on_thread_end)
        try:
            while (request := await self._get_request()) is not None:
                await self._answer(request)
        finally:
            self._close()
        if self._cancel is not None:
            raise self._cancel
        return thread.result()

    async def _get_request(self) -> _ThreadRequest | None:
        """Wait for the thread. An interrupted run waits until its function has ended, as for the threads of tools."""
        stop = self._run.attempt.stop_state
        while True:
            try:
                return await self._requests.get()
            except asyncio.CancelledError as exc:
                self._cancel = exc
                if stop.abandoned or stop.error is None or not stop.is_resumable_after(stop.error):
                    raise

    async def _answer(self, request: _ThreadRequest) -> None:
        if self._cancel is not None:
            request.refuse()
            return
        try:
            value = await request.work
        except BaseException as exc:  # of any kind: the function gets it
            if isinstance(exc, asyncio.CancelledError):
                self._cancel = exc
            request.future.set_exception(exc)
        else:
            request.future.set_result(value)

    def _on_thread_end(self, thread: "asyncio.Task[Any]") -> None:
        if not thread.cancelled():
            thread.exception()  # mark as retrieved: a run that was stopped does not look at it
        self._requests.put_nowait(None)

    def _close(self) -> None:
        """Refuse what a thread asks for that is left behind."""
        self._is_closed = True
        with contextlib.suppress(asyncio.QueueEmpty):
            while True:
                if (request := self._requests.get_nowait()) is not None:
                    request.refuse()

    def _submit(self, request: _ThreadRequest) -> None:
        if self._is_closed:
            request.refuse()
        else:
            self._requests.put_nowait(request)

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _enter(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        CURRENT_WORKFLOW.set(self)  # in the context of the thread
        return function(**arguments)

    def call_tool(self, tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: str | None) -> Any:
        """Make a step and return its value; of an async tool return a coroutine, for `block_on`, as outside of a run.

        Raises as `WorkflowRun.call_tool`.
        """
        step = self._run.call_tool(tool, args, kwargs, key)
        return self.block_on(step) if tool.in_thread else step

    def block_on(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the task of the workflow, and return its value.

        Raises:
            RunError: an event loop runs in this thread: it would be blocked.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            work.close()
            raise RunError("a plain workflow has called a step in an event loop of its own: use block_on()")
        request = _ThreadRequest(work)
        try:
            self._loop.call_soon_threadsafe(self._submit, request)
        except RuntimeError:  # the event loop is closed
            request.refuse()
        value: T = request.future.result()
        return value


def block_on(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine from a workflow that is a plain function, and return its value.

    For async tools, `sleep`, `first`, `now`, `run_agent` and so on, and for async functions that await them. Outside of
    a run it is `asyncio.run`.

    Raises:
        RunError: called in an event loop, where `await` is right.
    """
    thread = find_workflow()
    if isinstance(thread, FunctionThread):
        return thread.block_on(work)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise RunError("block_on() is for workflows that are plain functions: use await")
