"""Makes the beginning and the end of an attempt visible: in the log, the metrics, the audit and the telemetry."""

from holdfast.core.execution.attempt import RunExecution
from holdfast.core.log import log_end, log_start
from holdfast.core.run.status import AttemptEnd


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
    log_start(run.info, run.state, taken_from=run.taken_from)
    if run.ports.audit is not None:
        run.recorder = run.ports.audit.begin(run.info, run.state)
        run.recorder.start(resumed=run.resumed)


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
