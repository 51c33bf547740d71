"""Threads of sync tools: a bounded number, and each starts at once when its call has a slot.

A call waits for its slot on the event loop, where it can be cancelled, and its claim is verified after that. In the
queue of a thread pool it could start after another worker has taken the run.
"""

import asyncio
import contextlib
import contextvars
import functools
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from holdfast.concurrency import THREADS, end_forked_child
from holdfast.core.agents.tool_context import _CURRENT_CALL, ToolContext
from holdfast.core.errors import ProcessExit

if TYPE_CHECKING:
    from holdfast.core.execution.stop import StopState

P = ParamSpec("P")
T = TypeVar("T")

#: Sync tools that one executor runs at once.
MAX_TOOL_THREADS = 32

THREAD_NAME = "holdfast tool"

#: Calls of this process whose function has not returned.
_UNRETURNED: set[Future[Any]] = set()


class ToolThread:
    """What the thread of one call does."""

    def __init__(self, slot: "ThreadSlot", work: Callable[[], Any], future: "Future[Any]") -> None:
        self._slot, self._work, self._future = slot, work, future
        self._pid = os.getpid()

    def run(self) -> None:
        try:
            self._run_work()
        finally:
            self._slot.on_thread_end()

    def _run_work(self) -> None:
        future = self._future
        if self._slot.is_call_stopped:
            future.cancel()
        if not future.set_running_or_notify_cancel():
            return
        self._slot.started = True
        try:
            result = self._work()
        except StopIteration as exc:
            # asyncio refuses a StopIteration as the exception of a future, and the call would wait indefinitely.
            future.set_exception(_with_cause(RuntimeError("the tool raised StopIteration"), exc))
        except (SystemExit, KeyboardInterrupt) as exc:
            if os.getpid() != self._pid:
                end_forked_child(exc)
            # Raised in a task, these two end the event loop before any run is saved.
            future.set_exception(_with_cause(ProcessExit(exc), exc))
        except BaseException as exc:
            future.set_exception(exc)
        else:
            future.set_result(result)


def _with_cause(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


class ThreadSlot(Executor):
    """The right of one call to run in a thread. It ends when the thread does, also if the run has ended before.

    A repeated call waits for its slot again.
    """

    def __init__(
        self, threads: "ToolThreads | None" = None, context: ToolContext | None = None, stop: "StopState | None" = None
    ) -> None:
        """Make a slot of `threads`. Once the attempt is stopping it starts no thread."""
        self._threads = threads
        self.context = context
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._thread_count = 0
        #: Reserved, and not released.
        self.is_held = False
        #: The call has not used it.
        self._is_needed = True
        #: Whether the body of the tool was entered.
        self.started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_needed = False
        self._release_if_unused()

    @property
    def is_running(self) -> bool:
        """Whether a function of the call was entered and has not returned."""
        return self.started and self._thread_count > 0

    @property
    def is_call_stopped(self) -> bool:
        return self._stop is not None and self._stop.is_stopping

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Start a thread at once. If the run is stopping when the thread begins, the future is cancelled."""
        future: Future[T] = Future()
        thread = ToolThread(self, functools.partial(fn, *args, **kwargs), future)
        THREADS.get().start(thread.run, name=THREAD_NAME)
        _UNRETURNED.add(future)
        future.add_done_callback(_UNRETURNED.discard)
        self._thread_count += 1
        self._is_needed = False
        if self._threads is not None:
            self._threads.slots.add(self)
        return future

    def on_thread_end(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._count_thread_end)

    def _count_thread_end(self) -> None:
        self._thread_count -= 1
        self._release_if_unused()

    def _release_if_unused(self) -> None:
        if self._threads is not None and not self._is_needed and not self._thread_count:
            self._threads.release(self)

    async def release_during(self, pause: Awaitable[None]) -> None:
        """Release the slot while the call pauses, and wait for it again."""
        self._is_needed = False
        self._release_if_unused()
        await pause
        self._is_needed = True
        if self._threads is not None and not self.is_held:
            await self._threads.acquire(self)


class ToolThreads:
    """Hands out the slots of one executor, and lists the calls that occupy them."""

    def __init__(self, limit: int = MAX_TOOL_THREADS) -> None:
        self._semaphore = asyncio.Semaphore(limit)
        #: Those that are held or have a thread.
        self.slots: set[ThreadSlot] = set()

    async def reserve(self, context: ToolContext, stop: "StopState") -> ThreadSlot:
        """Wait for a slot for this call."""
        slot = ThreadSlot(self, context, stop)
        await self.acquire(slot)
        return slot

    async def acquire(self, slot: ThreadSlot) -> None:
        await self._semaphore.acquire()
        slot.is_held = True
        self.slots.add(slot)

    def release(self, slot: ThreadSlot) -> None:
        self.slots.discard(slot)
        if slot.is_held:
            slot.is_held = False
            self._semaphore.release()

    def list_running(self) -> list[ToolContext]:
        """Return the calls whose function was entered and has not returned."""
        return [slot.context for slot in self.slots if slot.is_running and slot.context is not None]


async def call_in_thread(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call `function` in the thread of the current call, or in one without a slot outside of a run."""
    context = _CURRENT_CALL.get()
    executor = (context.threads if context is not None else None) or ThreadSlot()
    work = functools.partial(contextvars.copy_context().run, function, **arguments)
    return await asyncio.get_running_loop().run_in_executor(executor, work)


async def release_slot_during(pause: Awaitable[None]) -> None:
    """Await `pause` without the thread slot of the current call, if it has one."""
    context = _CURRENT_CALL.get()
    slot = context.threads if context is not None else None
    await (slot.release_during(pause) if isinstance(slot, ThreadSlot) else pause)


def has_running_threads() -> bool:
    """Whether a sync tool has not returned, in this process."""
    return bool(_UNRETURNED)
