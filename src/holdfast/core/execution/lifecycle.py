"""The life cycle of a run: open its checkpoint and ports, execute its phases, finalize its checkpoint."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.clock import Timer
from holdfast.core.agents.agent import Agent, AgentSource
from holdfast.core.errors import (
    DefinitionError,
    MissingDefinition,
    NotDurable,
    ProcessExit,
    RunCancelled,
    RunError,
    RunInterrupted,
    RunLost,
    RunParked,
    Shutdown,
    convert_process_exit,
)
from holdfast.core.execution.attempt import Attempt, log
from holdfast.core.execution.calling.waits import Waits
from holdfast.core.execution.pipeline import Pipeline, build_agent, stop_later
from holdfast.core.execution.turn_cycle import end_turn, ends_turn, open_turn
from holdfast.core.observer import AttemptEnded, AttemptEnding, AttemptStarted, CallAnswered
from holdfast.core.ports import Leave
from holdfast.core.run.mail import BUDGET_TOPIC, MailArrived
from holdfast.core.run.result import Result
from holdfast.core.run.run_events import StatusChanged
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd
from holdfast.core.run.turns import INTERRUPT_TOPIC, ConversationIdle
from holdfast.core.run.waiting import BudgetExhausted, RunWaiting

#: Attempts in a row in which the agent of a resumed run cannot be built, before the run is parked.
MAX_BUILD_FAILURES = 10

#: A run's result, and its output as the store keeps it.
StoredResult = tuple[Result, Any]


async def execute(attempt: Attempt, source: AgentSource) -> StoredResult:
    """Execute the run to its output."""
    return await convert_process_exit(_execute(attempt, source))


async def _execute(attempt: Attempt, source: AgentSource) -> StoredResult:
    ports, state, timer = attempt.services.ports, attempt.state, None
    attempt.loop = attempt.services.get_loop(source)
    try:
        await _open_checkpointer(attempt)
        turn_mail = open_turn(attempt) if attempt.info.conversation else None
        if attempt.info.conversation and turn_mail is None and attempt.state.turn is None:
            return Result(
                run_id=attempt.info.run_id, output=None, usage=attempt.state.usage, steps=attempt.state.steps
            ), None
        attempt.observers.start(ports.observers, attempt, AttemptStarted(new_turn=turn_mail is not None))
        _report_resolved_calls(attempt)
        agent = await _build_agent(source, attempt)
        loop = attempt.loop = attempt.services.get_loop(agent)
        state.codec = loop.codec
        if attempt.resumed and turn_mail is None:
            resumed = StatusChanged(
                run_id=attempt.info.run_id, step=attempt.state.steps, status="running", resumed=True
            )
            await attempt.observers.publish(resumed)
        timer = _start_watch(agent, attempt)
        if attempt.mailbox.unread:
            attempt.mailbox.take_all(BUDGET_TOPIC)
        if ports.budget is not None and not attempt.stop_state.is_undoing:
            await ports.budget.check(attempt.info, attempt.state)
        tools = await ports.extra_tools.tools(attempt.info) if ports.extra_tools is not None else ()
        pipeline = Pipeline(attempt, agent, loop, tools, turn_mail)
        output = await pipeline.run()
        stored = loop.dump_output(output)
        if ports.listener is not None:
            await ports.listener.on_output(attempt.info, output)
        return pipeline.make_result(output), stored
    finally:
        if timer is not None:
            timer.cancel()


def _report_resolved_calls(attempt: Attempt) -> None:
    """Tell observers what a person has decided about calls in doubt. A process that unparks a run has none."""
    calls = attempt.state.calls
    for call in calls.resolved:
        if call.decision is not None:
            attempt.observers.emit(CallAnswered(call=call, decision=call.decision))
    if calls.resolved:
        attempt.state.calls = msgspec.structs.replace(calls, resolved=())


async def _open_checkpointer(attempt: Attempt) -> None:
    if attempt.checkpointer is not None or attempt.services.ports.checkpoints is None:
        return
    try:
        attempt.saver.checkpointer = await attempt.services.ports.checkpoints.begin(attempt.info)
    except Exception as exc:  # a host's own factory may raise anything
        if attempt.stop_state.is_resumable_after(exc):
            raise
        if attempt.services.require_durability:
            raise NotDurable(f"run {attempt.info.run_id} was refused: it could not be made durable: {exc}") from exc
        log.warning("run %s continues without durability: %s", attempt.info.run_id, exc, exc_info=exc)


async def _build_agent(source: AgentSource, attempt: Attempt) -> Agent:
    try:
        agent = await build_agent(source, attempt.info)
    except DefinitionError as exc:
        if not attempt.resumed:
            raise
        # The process that began the run could build it, with a definition that this one lacks.
        raise _count_build_failure(attempt, exc) from exc
    _set_build_failures(attempt.state, 0)
    return agent


def _count_build_failure(attempt: Attempt, error: DefinitionError) -> RunError:
    """Return the error that leaves the run to another attempt, or after too many attempts parks it."""
    failures = attempt.state.faults.build_failures + 1
    _set_build_failures(attempt.state, 0 if failures >= MAX_BUILD_FAILURES else failures)
    if failures >= MAX_BUILD_FAILURES:
        return RunParked("missing definition", f"its agent could not be built {failures} times: {error}")
    return MissingDefinition(f"run {attempt.info.run_id}: its agent cannot be built here: {error}")


def _set_build_failures(state: RunState, count: int) -> None:
    if state.faults.build_failures != count:
        state.faults = msgspec.structs.replace(state.faults, build_failures=count)


def _start_watch(agent: Agent, attempt: Attempt) -> Timer | None:
    """Start the critic's watch. Without one, start the timer that stops the run after `max_runtime`."""
    limit, critic = agent.bounds.max_runtime, attempt.services.ports.critic
    is_watched = critic is not None and attempt.observers.begin_watch(critic, attempt, limit)
    if limit is None or is_watched:
        return None
    return stop_later(attempt, limit, max(limit - attempt.state.turn_elapsed, timedelta(0)))


# -- the end ----------------------------------------------------------------------------------------------------


async def finalize(attempt: Attempt, error: BaseException | None, result: StoredResult | None) -> BaseException | None:
    """Complete, fail, park or release the checkpoint of a run that has ended, and close its ports.

    Returns `error`, or why a run with a result has not ended: it has to read its mail first, or the store did not take
    its end. Raises nothing else: that would mask the outcome of the run.

    Args:
        result: if the run succeeded.
    """
    if isinstance(error, RunError) and error.is_elsewhere and not attempt.saver.is_stored:
        # Another attempt has created the run, which is fine: the caller follows it.
        attempt.observers.emit(AttemptEnded(end=AttemptEnd.LOST))
        return error
    end = attempt.stop_state.classify_error(error)
    is_turn_end = ends_turn(attempt, end, error)
    attempt.observers.emit(AttemptEnding(end=end))
    recorded = await _record_end(attempt, end, error, result)
    if recorded is not error:
        error, is_turn_end = recorded, False
        end = attempt.stop_state.classify_error(error)
    if attempt.observers.has_begun or end in (AttemptEnd.FAILED, AttemptEnd.CANCELLED):
        attempt.observers.emit(AttemptEnded(end=end, error=error, turn_ended=is_turn_end))
    await _call_port(attempt, _report_error(attempt, error))
    return error


async def _record_end(
    attempt: Attempt, end: AttemptEnd, error: BaseException | None, result: StoredResult | None
) -> BaseException | None:
    """End the checkpoint. Return the error of the attempt: `error`, unless the run continues after all."""
    failure: Exception | None = None
    try:
        # Usage of the last step is committed while the run is in the store: afterwards it could not be found.
        await _call_port(attempt, _commit_budget(attempt, end))
        if attempt.checkpointer is None:
            return error
        if not attempt.stop_state.abandoned:
            if await _finalize_checkpoint(attempt, end, error, result):
                return error
            return MailArrived(f"run {attempt.info.run_id} continues: mail has arrived")
    except asyncio.CancelledError:
        if not attempt.stop_state.abandoned:
            raise
    except Exception as exc:  # a store may raise anything
        log.error("run %s: its checkpoint could not be finalized (%s)", attempt.info.run_id, end, exc_info=exc)
        failure = exc
    return error if result is None else attempt.saver.make_end_error(failure)


async def release_claim(attempt: Attempt) -> None:
    """Leave a claimed run that cannot be executed here to other workers."""
    if attempt.checkpointer is not None:
        try:
            await attempt.checkpointer.leave(Leave())
        except Exception as exc:  # a store may raise anything
            log.error("run %s: its claim could not be released", attempt.info.run_id, exc_info=exc)


async def _finalize_checkpoint(
    attempt: Attempt, end: AttemptEnd, error: BaseException | None, result: StoredResult | None
) -> bool:
    """Return False if the run has to read its mail before it may end or wait."""
    checkpointer = attempt.checkpointer
    if checkpointer is None:
        return True
    if end is AttemptEnd.LOST:
        # If the error is about another run, this worker still owns the run and would keep it: the fence decides.
        with suppress(RunLost):
            await checkpointer.leave(Leave(reason=str(error), strike=True))
        return True
    if ends_turn(attempt, end, error):
        if error is not None and not await _close_waits(attempt):
            await checkpointer.leave(Leave())
            return False
        end_turn(attempt, None if result is None else result[1], error)
        idle = ConversationIdle(attempt.info.run_id)
        if error is not None and attempt.services.ports.checkpoints is not None:
            await _call_port(attempt, attempt.services.ports.checkpoints.cancel_children(attempt.info.run_id))
        # With unread mail the run is resumed at once.
        await checkpointer.leave(Leave(AttemptEnd.WAITING, reason=idle.reason, wake_on=tuple(idle.wake_on)))
        return True
    if result is not None:
        return await checkpointer.complete(result[1], result[0].usage)
    if error is not None and end.is_terminal:
        await checkpointer.fail(error)
        return True
    if isinstance(error, ProcessExit):
        attempt.state.faults = msgspec.structs.replace(
            attempt.state.faults, exit_step=attempt.state.steps + 1, exit_error=str(error)
        )
    await _save_unsaved(attempt)
    return await checkpointer.leave(_make_leave(attempt, error))


def _make_leave(attempt: Attempt, error: BaseException | None) -> Leave:
    """Return how an attempt ends whose run waits, is parked or is interrupted."""
    if isinstance(error, RunWaiting):
        topics = tuple(error.wake_on)
        # A turn that waits for its budget could not read the message either.
        if attempt.state.turn is not None and not isinstance(error, BudgetExhausted):
            topics += (INTERRUPT_TOPIC,)
        return Leave(AttemptEnd.WAITING, reason=error.reason, wake_at=error.wake_at, wake_on=topics)
    if isinstance(error, RunParked):
        despite_cancel = isinstance(attempt.stop_state.undo_error, RunCancelled)
        return Leave(AttemptEnd.PARKED, despite_cancel=despite_cancel, reason=error.message)
    if isinstance(error, RunInterrupted) and not isinstance(error, Shutdown):
        return Leave(reason=str(error), delay=error.retry_after, strike=error.is_strike)
    return Leave()  # a shutdown, also by the host's own exception, is no reason worth storing


async def _close_waits(attempt: Attempt) -> bool:
    """End the waits of a turn that ends. Return False if the store did not take that: the turn is resumed."""
    try:
        await Waits(attempt).close()
    except Exception as exc:  # a store may raise anything
        log.warning("run %s: its turn could not be ended: %s", attempt.info.run_id, exc)
        return False
    return True


async def _save_unsaved(attempt: Attempt) -> None:
    try:
        await attempt.saver.save(force=True)
    except Exception as exc:  # such as a transcript over its limit: then the run resumes from its last save
        log.warning("run %s: its progress since the last save was not saved: %s", attempt.info.run_id, exc)


async def _call_port(attempt: Attempt, call: Awaitable[None]) -> None:
    try:
        await call
    except Exception as exc:  # a host's own port may raise anything
        log.error("run %s: a port failed while the run was finalized", attempt.info.run_id, exc_info=exc)


async def _commit_budget(attempt: Attempt, end: AttemptEnd) -> None:
    if attempt.services.ports.budget is not None and end is not AttemptEnd.LOST:
        attempt.saver.update_elapsed()
        await attempt.services.ports.budget.commit(attempt.info, attempt.state)


async def _report_error(attempt: Attempt, error: BaseException | None) -> None:
    if error is not None and attempt.services.ports.listener is not None:
        await attempt.services.ports.listener.on_error(attempt.info, error)
