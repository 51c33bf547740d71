"""Reports code that blocks the event loop: while it does, no run of the process continues."""

import asyncio
import functools
import logging
import os
import sys
import sysconfig
from types import FrameType
from typing import Final

from holdfast.concurrency import THREADS, get_thread_id, has_system_threads
from holdfast.core.execution.calling.tool_calls import ToolCalls
from holdfast.core.execution.lifecycle import _execute

log: logging.Logger = logging.getLogger("holdfast.loop")

#: Seconds between two looks at the event loop, and seconds without an answer that count as blocked.
INTERVAL: Final = 1.0
#: Code that blocks again is reported once in this many seconds.
QUIET_TIME: Final = 60.0

_CALL_CODE, _RUN_CODE = ToolCalls._await_result.__code__, _execute.__code__

_TOOL_HINT = "write the tool as a plain `def`, which runs in a thread, or await an async client in it"
_AGENT_HINT = "await an async client, or asyncio.to_thread"


class LoopWatchdog:
    """A thread that asks the event loop for a sign of life once a second. The runs themselves do nothing for it."""

    def __init__(self) -> None:
        """Make the watchdog of the running event loop."""
        self._loop, self._loop_thread = asyncio.get_running_loop(), get_thread_id()
        self._threads = THREADS.get()
        self._stopped, self._answered = self._threads.make_event(), self._threads.make_event()
        #: When the code at a place was reported.
        self._reported: dict[str, float] = {}

    def start(self) -> None:
        """Start the thread. Not in a simulation, where time passes only when nothing works."""
        if has_system_threads():
            self._threads.start(self._watch, name="holdfast watchdog")

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._answered.set()

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self._answered.clear()
            asked_at = self._threads.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answered.set)
            except RuntimeError:  # the event loop is closed
                return
            if not self._answered.wait(INTERVAL) and not self._stopped.is_set():
                self._report(asked_at)

    def _report(self, asked_at: float) -> None:
        """Log what blocks the loop, until it answers; and then for how long it was blocked."""
        last = None
        while True:
            frame = sys._current_frames().get(self._loop_thread)
            found = None if frame is None else _describe_block(frame)
            now = self._threads.monotonic()
            if found is not None and now - self._reported.get(found[1], -QUIET_TIME) >= QUIET_TIME:
                last = who, place, hint = found
                self._reported[place] = now
                log.warning(
                    "%s has blocked the event loop for %.1f seconds at %s: no run of this process continues meanwhile. "
                    "To avoid that, %s",
                    who,
                    now - asked_at,
                    place,
                    hint,
                )
            if self._answered.wait(INTERVAL):
                break
        took = self._threads.monotonic() - asked_at
        if last is not None and took > 2 * INTERVAL:
            log.warning("%s: the event loop was blocked for %.1f seconds", last[0], took)


@functools.cache
def _list_libraries() -> tuple[str, ...]:
    """Return where code lies that no user wrote. When it is needed: reading the paths loads a large module."""
    return (os.path.dirname(os.path.dirname(__file__)), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))


def _describe_block(frame: FrameType) -> tuple[str, str, str] | None:
    """Return who blocks the loop, where, and what to do; `None` if that is no code of a run."""
    own_frame, current = frame, frame  # own: the outermost one of the user's code
    while True:
        code = current.f_code
        if code is _CALL_CODE:
            call = current.f_locals["context"]
            return f"run {call.run_id}: the tool {call.tool}", _format_place(own_frame), _TOOL_HINT
        if code is _RUN_CODE:
            info = current.f_locals["attempt"].info
            who = f"run {info.run_id}: the model or other code of agent {info.agent_name}"
            return who, _format_place(own_frame), _AGENT_HINT
        if not code.co_filename.startswith(_list_libraries()):
            own_frame = current
        if current.f_back is None:
            return None
        current = current.f_back


def _format_place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} ({frame.f_code.co_name})"
