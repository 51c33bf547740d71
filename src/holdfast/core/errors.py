"""Errors of runs. The whole tree is drawn in `holdfast.root_error`."""

import os
import traceback
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from holdfast.concurrency import end_forked_child
from holdfast.root_error import HoldfastError

T = TypeVar("T")

#: What is kept of a traceback: its last frames, and its last characters.
_TRACE_FRAMES, _TRACE_LENGTH = 12, 4_000
_OWN_FILES = str(Path(__file__).parents[1])


class RunError(HoldfastError):
    """A run could not be started, or ended without an answer.

    What to do: The subclass says why, and whether the run can be resumed.
    """

    #: The run is another attempt's: the one that raises this has executed nothing of it.
    is_elsewhere: bool = False


class RunAlreadyRunning(RunError):
    """This executor already executes a run with this id.

    What to do: Wait for the run with `App.result`, or use another id.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} is already executing in this process: wait for it, or choose another id")
        self.run_id = run_id


class NotDurable(RunError):
    """The run was refused because it could not be made durable, and the host requires that.

    What to do: Make the store reachable and start the run again, or set `require_durability=False`.
    """


class DefinitionError(RunError):
    """An argument, a setting, or the definition of an agent, a tool or a phase is not valid.

    What to do: Correct the argument or the definition as the message says.
    """


class InvalidRunId(DefinitionError):
    """The run id cannot be used.

    What to do: Use 1 to 200 letters, digits or `. _ : -`.
    """


class UnknownTool(DefinitionError):
    """A tool is named that the agent does not have.

    What to do: Add the tool to the agent, or correct the name.
    """

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(f"no tool {name!r}; known: {', '.join(known) or 'none'}")
        self.name = name
        self.known = known


class InvalidReply(RunError):
    """The model callable returned something that is not a `Reply`, or one that contradicts itself.

    What to do: Correct the model callable as the message says, then `resume` the run.
    """


class PayloadError(RunError):
    """A value cannot be stored without changing it. Earlier saves are kept.

    What to do: Return or send plain JSON data: text without lone surrogates, numbers, lists, mappings with text keys.
    """


class BoundExceeded(RunError):
    """The run reached a bound of its agent.

    What to do: Raise the bound, then `resume` the run.
    """


class StepsExceeded(BoundExceeded):
    """The run took as many steps as its agent may take.

    What to do: Raise `Bounds.max_steps`, then `resume` the run.
    """

    def __init__(self, run_id: str, bound: int) -> None:
        super().__init__(f"run {run_id} took {bound} steps without an answer: raise max_steps to let it continue")
        self.run_id = run_id
        self.bound = bound


class RuntimeExceeded(BoundExceeded):
    """The run used all the execution time of its agent. Time spent interrupted does not count.

    What to do: Raise `Bounds.max_runtime`, then `resume` the run.
    """

    def __init__(self, run_id: str, bound: timedelta) -> None:
        super().__init__(f"run {run_id} ran for {bound} without an answer: raise max_runtime to let it continue")
        self.run_id = run_id
        self.bound = bound


class RepeatedToolCalls(BoundExceeded):
    """The model asked for the same tools with the same arguments too often in a row.

    What to do: Improve the tool's result so that the model learns from it, or raise `max_repeats`. `resume` continues
    the run.
    """

    def __init__(self, run_id: str, tool: str, times: int) -> None:
        super().__init__(f"run {run_id} called {tool} {times} times in a row with the same arguments: it is stuck")
        self.run_id = run_id
        self.tool = tool
        self.times = times


class ToolFailed(RunError):
    """A tool with `on_error="raise"` raised an error, which is the cause of this one.

    What to do: Read the cause, fix the tool, then `resume` the run.
    """

    def __init__(self, tool: str, error: BaseException) -> None:
        super().__init__(f"tool {tool} failed, and its on_error ends the run: {format_error(error)}")
        self.tool = tool


class ToolTimeout(RunError):
    """A tool did not finish within its `timeout`.

    What to do: Raise the tool's `timeout`, or make the tool faster.
    """

    def __init__(self, tool: str, timeout: timedelta, *, may_be_running: bool, effect_unknown: bool = False) -> None:
        """Make the error.

        Args:
            may_be_running: the tool runs in a thread, which cannot be stopped.
            effect_unknown: the tool was cancelled, and calling it again may repeat its effect.
        """
        detail = "It was cancelled."
        if may_be_running:
            detail = "Its thread cannot be stopped: the work may still be running and may still take effect."
        elif effect_unknown:
            detail = "It was cancelled: it may or may not have taken effect. Check before you call it again."
        super().__init__(f"tool {tool} did not finish within {timeout.total_seconds():g} seconds. {detail}")
        self.tool = tool
        self.timeout = timeout
        self.may_be_running = may_be_running


class RunKilled(RunError):
    """A critic ended the run.

    What to do: Read the reason, fix its cause, then `resume` the run.
    """


class RunCancelled(RunError):
    """The run was cancelled.

    What to do: Nothing, if that was intended. `resume` continues it by hand.
    """


class RunFailed(RunError):
    """The run failed. The exception that ended it is the cause, `__cause__`, if this process has just executed the run.

    Every caller gets this class, now, later and in other processes, where only `error` is known.

    What to do: Read the error, fix its cause, then `resume` the run: it continues after its last good step.
    """

    def __init__(self, run_id: str, error: str) -> None:
        super().__init__(f"run {run_id} failed: {error}")
        self.run_id = run_id
        #: The class and the text of the exception that ended the run, such as `ValueError: no such order`.
        self.error = error


class TurnFailed(RunFailed):
    """A turn of a conversation ended without an answer. The conversation continues with the next message.

    What to do: Read the error, fix its cause, and send another message.
    """

    def __init__(self, run_id: str, turn_id: str, error: str) -> None:
        RunError.__init__(self, f"conversation {run_id}: turn {turn_id} ended without an answer: {error}")
        self.run_id = run_id
        self.turn_id = turn_id
        self.error = error


class ConversationBusy(RunError):
    """A turn of the conversation is in progress or queued, and the message was sent with `when="reject"`.

    What to do: Resend the message later, or with another `when`.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(f"conversation {run_id} is busy: send the message later, or queue it")
        self.run_id = run_id


class TurnInterrupted(RunError):
    """The next message of a conversation ended the turn.

    What to do: Nothing: the next message is answered.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__("interrupted by the next message")
        self.run_id = run_id


class RunParked(RunError):
    """The run waits for a person or a condition. Its checkpoint is kept; `unpark` resumes it.

    What to do: Read the reason with `holdfast show`, act on it, then `unpark` the run.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        #: Stored with the run.
        self.message: str = f"{reason}: {detail}" if detail else reason
        super().__init__(f"parked, {self.message}")
        #: One or two words: `approval`, `in doubt`, `poison`, `budget`, `size`, ...
        self.reason = reason
        self.detail = detail


class RunInterrupted(RunError):
    """The run stopped before its end and its checkpoint is kept: recovery resumes it.

    What to do: Nothing: any worker resumes the run. `holdfast ls` shows interrupted runs.
    """

    #: Recovery waits this long before it resumes the run.
    retry_after: timedelta = timedelta(0)
    #: Whether the attempt counts as a strike if it finished no step, as the death of the process does.
    is_strike = False


class Shutdown(RunInterrupted):
    """The host shuts down. Recovery resumes the run.

    What to do: Nothing: another worker, or the next start of this one, resumes the run.
    """

    def __init__(self, message: str = "", *, step: int | None = None) -> None:
        super().__init__(message)
        #: The last finished step, if this process executed the run.
        self.step = step


class MissingDefinition(RunInterrupted):
    """This process lacks a tool, a phase or the agent of a saved run. The run is left to a process that has it.

    What to do: Deploy a worker that has the definition, or `cancel` the run.
    """

    retry_after: timedelta = timedelta(minutes=1)


class ProcessExit(RunInterrupted):
    """A tool or the model called `sys.exit` or raised KeyboardInterrupt.

    All runs of the process are interrupted. Then the original exception ends the process.

    What to do: Raise an ordinary exception in the tool instead. A worker resumes the runs.
    """

    is_strike = True

    def __init__(self, exception: BaseException) -> None:
        super().__init__(f"the run ended its process: {format_error(exception)}")
        #: What was raised.
        self.exception = exception


async def convert_process_exit(work: Awaitable[T]) -> T:
    """Return the result of `work`, which becomes a task of its own.

    Raises:
        ProcessExit: it raised SystemExit or KeyboardInterrupt. Raised in a task, these two end the event loop before
            any run is saved.
    """
    pid = os.getpid()
    try:
        return await work
    except BaseException as exc:
        if os.getpid() != pid:
            end_forked_child(exc)
        if isinstance(exc, SystemExit | KeyboardInterrupt):
            raise ProcessExit(exc) from exc
        raise


class SaveFailed(RunInterrupted):
    """The store did not accept a save or the result, and the run must not continue or end without it.

    What to do: Make the store reachable: a worker resumes the run from its last save. `run` with the same id attaches.
    """

    retry_after: timedelta = timedelta(seconds=5)


class ModelUnavailable(RunInterrupted):
    """The model's provider is unavailable. Recovery resumes the run after `retry_after`.

    A model may raise it: the call is retried as the agent's `Retry` says, and then the run is interrupted.

    What to do: Nothing: a worker resumes the run. `Agent(retry=...)` sets how long the call is retried.
    """

    def __init__(self, message: str, retry_after: timedelta | None = None) -> None:
        """Make the error.

        Args:
            retry_after: the wait that the provider asked for, if it did.
        """
        super().__init__(message)
        self.requested_delay = retry_after
        self.retry_after: timedelta = timedelta(seconds=30) if retry_after is None else retry_after


class ShuttingDown(RunInterrupted):
    """The executor is shutting down and admits no new runs.

    What to do: Submit the run, so that another worker takes it, or start it after the restart.
    """


class RunLost(RunError):
    """This process no longer owns the run: stop, and write nothing about it.

    What to do: Nothing: the other worker continues the run. If this happens often, look for hosts that stall or swap.
    """


def format_error(error: BaseException) -> str:
    """Return the error's class and text without half surrogate pairs, which no store can keep. Raises nothing."""
    try:
        text = str(error)
    except Exception:  # a user's class may raise anything
        text = "(its text could not be made)"
    return f"{type(error).__name__}: {text}".encode(errors="replace").decode()


def format_trace(error: BaseException) -> str:
    """Return the end of the error's traceback, without the frames of holdfast and half surrogate pairs. Raises nothing.

    It names files and lines of code, and no values but those in the text of the error.
    """
    try:
        trace = traceback.TracebackException.from_exception(error, limit=-_TRACE_FRAMES)
        frames = [frame for frame in trace.stack if not frame.filename.startswith(_OWN_FILES)]
        trace.stack = traceback.StackSummary.from_list(frames)
        text = "".join(trace.format())
    except Exception:  # a user's class may raise anything
        return ""
    return text[-_TRACE_LENGTH:].encode(errors="replace").decode().rstrip()
