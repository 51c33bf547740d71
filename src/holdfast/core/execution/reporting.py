"""Makes the beginning and the end of an attempt visible: in the log, the metrics, the audit and the telemetry.

An audit or a critic that raises is logged and gets no further call for this attempt. It never fails the run.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.execution.attempt import RunExecution, log
from holdfast.core.log import log_end, log_start
from holdfast.core.ports import Recorder, Watch
from holdfast.core.run.messages import Usage
from holdfast.core.run.status import AttemptEnd


class _Guard:
    """Calls an object of the host until it raises for the first time."""

    def __init__(self, run_id: str, name: str) -> None:
        self._run_id, self._name, self._has_failed = run_id, name, False

    def call(self, method: Callable[[], None]) -> None:
        if self._has_failed:
            return
        try:
            method()
        except Exception as exc:  # a host's own object may raise anything
            self._has_failed = True
            log.error("run %s: its %s has failed and is not used further", self._run_id, self._name, exc_info=exc)


class GuardedRecorder(_Guard):
    """A `Recorder` that raises nothing."""

    def __init__(self, recorder: Recorder, run_id: str) -> None:
        super().__init__(run_id, "audit")
        self._recorder = recorder

    def start(self, *, resumed: bool) -> None:
        self.call(partial(self._recorder.start, resumed=resumed))

    def step(self, step: int, usage: Usage) -> None:
        self.call(partial(self._recorder.step, step, usage))

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None:
        self.call(partial(self._recorder.tool, call, effect=effect, error=error, took=took))

    def event(self, name: str, detail: str) -> None:
        self.call(partial(self._recorder.event, name, detail))

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None:
        self.call(partial(self._recorder.close, status, usage, error))


class GuardedWatch(_Guard):
    """A `Watch` that raises nothing."""

    def __init__(self, watch: Watch, run_id: str) -> None:
        super().__init__(run_id, "critic")
        self._watch = watch

    def activity(self) -> None:
        self.call(self._watch.activity)

    def close(self) -> None:
        self._watch.close()  # the caller expects that it may raise


def begin_audit(run: RunExecution) -> None:
    """Begin the audit of the attempt, if the host has one."""
    if run.ports.audit is None:
        return
    try:
        recorder = run.ports.audit.begin(run.info, run.state)
    except Exception as exc:  # a host's own audit may raise anything
        log.error("run %s: its audit could not begin", run.info.run_id, exc_info=exc)
        return
    run.recorder = GuardedRecorder(recorder, run.info.run_id)
    run.recorder.start(resumed=run.resumed)


def begin_watch(run: RunExecution, max_runtime: timedelta | None) -> None:
    """Begin the critic's watch on the attempt, if the host has a critic."""
    if run.ports.critic is None:
        return
    try:
        watch = run.ports.critic.begin(run.info, run.state, run, max_runtime)
    except Exception as exc:  # a host's own critic may raise anything
        log.error("run %s: its critic could not begin", run.info.run_id, exc_info=exc)
        return
    if watch is not None:
        run.watch, run.has_listeners = GuardedWatch(watch, run.info.run_id), True


def report_begin(run: RunExecution, *, new_turn: bool) -> None:
    """Report that an attempt of the run begins: its checkpoint is open.

    Args:
        new_turn: it begins a turn of a conversation.
    """
    run.begun = True
    if run.taken_from is not None:
        run.metrics.takeovers += 1
    if run.ports.telemetry is not None:
        # A resumed run was claimed by a task that has another trace, or none. A child runs within a call of its parent.
        inherits = run.is_child or not run.resumed
        run.trace = run.ports.telemetry.begin(run.info, run.state, inherits=inherits, new_turn=new_turn)
        run.saver.trace = run.trace
    log_start(run.info, run.state, taken_from=run.taken_from)
    begin_audit(run)


async def report_end(run: RunExecution, end: AttemptEnd, error: BaseException | None, *, turn_ended: bool) -> None:
    """Report how the attempt ended: its checkpoint is finalized.

    Args:
        turn_ended: a turn of a conversation ended, and the conversation waits for the next message.
    """
    if run.begun or end in (AttemptEnd.FAILED, AttemptEnd.CANCELLED):
        log_end(run.info, run.state, end, error, turn_ended=turn_ended)
        run.metrics.add_attempt(end.value)
    if run.trace is not None:
        run.trace.close(end.value, error)
    if run.recorder is not None:
        run.recorder.close(end.value, run.state.own_usage, error)
