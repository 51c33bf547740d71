"""Makes the beginning and the end of an attempt visible: in the log and in the audit."""

from holdfast.core.execution.run import RunExecution
from holdfast.core.observation.log import log_end, log_start
from holdfast.core.result import CheckpointAction


def report_begin(run: RunExecution) -> None:
    """Report that an attempt of the run begins: its checkpoint is open."""
    run.begun = True
    log_start(run.info, run.state, taken_from=run.taken_from)
    if run.ports.audit is not None:
        run.recorder = run.ports.audit.begin(run.info, run.state)
        run.recorder.start(resumed=run.resumed)


async def report_end(
    run: RunExecution, action: CheckpointAction, error: BaseException | None, *, turn_ended: bool
) -> None:
    """Report how the attempt ended: its checkpoint is finalized.

    Args:
        turn_ended: a turn of a conversation ended, and the conversation waits for the next message.
    """
    if run.begun or action is CheckpointAction.FAIL:
        run.update_elapsed()
        log_end(run.info, run.state, action, error, turn_ended=turn_ended)
    if run.recorder is not None:
        run.recorder.close(action.value, run.state.own_usage, error)
