"""Retries of model calls and tool calls, and the timeout of tool calls."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from holdfast.clock import Clock
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.retry import Backoff, Retry, get_retry_after
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.agents.tool_threads import release_slot_during
from holdfast.core.errors import ModelUnavailable, ToolTimeout, convert_process_exit
from holdfast.core.execution.attempt import RunExecution
from holdfast.core.execution.model_gate import ModelGate
from holdfast.core.log import format_short
from holdfast.core.observer import MODEL_ASKED, REPLY_RECEIVED, ReplyReceived, Retried
from holdfast.core.run.run_events import DraftRetracted, RetryScheduled

_FIRST_OUTAGE_DELAY = timedelta(seconds=30)
_MAX_OUTAGE_DELAY = timedelta(minutes=15)


def get_outage_delay(outages: int) -> timedelta:
    """Return how long a run stays interrupted the n-th time in a row that its model is unavailable."""
    return min(_FIRST_OUTAGE_DELAY * (1 << min(outages - 1, 10)), _MAX_OUTAGE_DELAY)


class ModelRetries:
    """The retries of the model calls of one conversation. A loop reports each error and each reply of its model."""

    __slots__ = ("_backoff", "_final_error", "_gate", "_policy", "_run")

    def __init__(self, run: RunExecution, policy: Retry, gate: ModelGate) -> None:
        self._run, self._policy, self._gate = run, policy, gate
        #: Of the present call, once it has failed.
        self._backoff: Backoff | None = None
        #: The error that ended the retries.
        self._final_error: ModelUnavailable | None = None

    async def on_error(self, error: Exception) -> None:
        """Pause after a failed model call. Once this returns, make the call again.

        Raises:
            ModelUnavailable: the retries are exhausted. The run is interrupted and resumes after a delay, which grows.
            Exception: `error` itself, if it is not transient.
        """
        run = self._run
        if DraftRetracted in run.observers.wanted:
            run.observers.emit(DraftRetracted(run_id=run.info.run_id, step=run.state.steps + 1))
        self._gate.on_error(error)
        interrupts = run.is_resumable_after(error) and not isinstance(error, ModelUnavailable)
        if error is self._final_error or interrupts or run.is_stopping or not self._policy.is_transient(error):
            raise error
        if self._backoff is None:
            self._backoff = Backoff(self._policy, run.clock)
        delay = self._backoff.next_delay(error)
        if delay is None:
            self._final_error = self._make_final_error(error, self._backoff.failed_tries)
            raise self._final_error from error
        await _report_retry(run, self._backoff.failed_tries, delay, error)
        await run.pause(delay)
        run.observers.emit(MODEL_ASKED)

    def on_reply(self) -> None:
        """Record that the model replied: the next call has all its attempts, and the next outage a short delay."""
        self._backoff = None
        if ReplyReceived in self._run.observers.wanted:
            self._run.observers.emit(REPLY_RECEIVED)
        retry = self._run.state.retry
        if retry.next_at is not None or retry.outages:
            self._run.state.retry = msgspec.structs.replace(retry, next_at=None, outages=0)

    def _make_final_error(self, error: Exception, attempts: int) -> ModelUnavailable:
        run = self._run
        outages = run.state.retry.outages + 1
        run.state.retry = msgspec.structs.replace(
            run.state.retry, error=format_short(error), next_at=None, outages=outages
        )
        asked = get_retry_after(error, run.clock.now()) or timedelta(0)
        delay = max(get_outage_delay(outages), asked)
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        resumes = f", and resumes after {delay.total_seconds():g} seconds" if run.checkpointer is not None else ""
        return ModelUnavailable(
            f"run {run.info.run_id} waits for its model after {times}{resumes}: {format_short(error)}", delay
        )


def call_tool(
    run: RunExecution, tool: Tool, call_id: str, start: Callable[[], Coroutine[Any, Any, Any]]
) -> Awaitable[Any]:
    """Call a tool within its timeout, and again as its `Retry` says. Raises what the last attempt raises.

    Args:
        start: starts one attempt.
    """
    retry = tool.policy.retry
    if retry is None:
        return _attempt(run, tool, start)
    return retry_call(run, retry, tool.name, call_id, partial(_attempt, run, tool, start))


def _attempt(run: RunExecution, tool: Tool, start: Callable[[], Coroutine[Any, Any, Any]]) -> Awaitable[Any]:
    work = start()
    if tool.timeout is not None:
        work = _run_within_timeout(tool, tool.timeout, work, run.clock)
    return run.await_uninterruptible(work) if tool.in_thread else work


async def retry_call(
    run: RunExecution,
    policy: Retry,
    tool: str,
    call_id: str,
    attempt: Callable[[], Awaitable[Any]],
    *,
    outcomes: tuple[type[Exception], ...] = (),
) -> Any:
    """Make a tool call, and again after transient errors, as `policy` says. Raises what the last attempt raises.

    Args:
        outcomes: exceptions by which the tool does not fail, such as a request for approval.
    """
    backoff: Backoff | None = None
    while True:
        try:
            return await attempt()
        except Exception as exc:  # user code may raise anything
            if isinstance(exc, outcomes) or run.is_resumable_after(exc) or not policy.is_transient(exc):
                raise
            if run.is_stopping:  # the call has no result: it is made again if the run resumes
                raise asyncio.CancelledError from exc
            backoff = backoff or Backoff(policy, run.clock)
            delay = backoff.next_delay(exc)
            if delay is None:
                raise
            await _report_retry(run, backoff.failed_tries, delay, exc, tool, call_id)
        await release_slot_during(run.pause(delay))
        if (children := current_call().children) is not None:
            children.begin_attempt()


async def _run_within_timeout(tool: Tool, timeout: timedelta, work: Coroutine[Any, Any, Any], clock: Clock) -> Any:
    """Return the result of `work`. After `timeout` it is cancelled; what it returns after all counts.

    Raises:
        ToolTimeout: it was cancelled.
    """
    task = asyncio.ensure_future(convert_process_exit(work))
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = clock.call_later(timeout, expire)
    try:
        return await task
    except asyncio.CancelledError:
        if not expired:
            raise
        unknown = tool.effect is Effect.ONCE
        raise ToolTimeout(tool.name, timeout, may_be_running=tool.in_thread, effect_unknown=unknown) from None
    finally:
        timer.cancel()


async def _report_retry(
    run: RunExecution, attempt: int, delay: timedelta, error: Exception, tool: str = "", call_id: str = ""
) -> None:
    """Make a retry visible: to observers, to the listener and in the store."""
    retry = run.state.retry
    run.state.retry = msgspec.structs.replace(
        retry, count=retry.count + 1, error=format_short(error), next_at=run.clock.now() + delay
    )
    run.observers.emit(Retried(tool=tool, call_id=call_id, failed_tries=attempt, delay=delay, error=error))
    event = RetryScheduled(
        run_id=run.info.run_id,
        step=run.state.steps + 1,
        call_id=call_id,
        tool=tool,
        error=format_short(error),
        attempt=attempt,
        delay=delay,
    )
    run.record_event(event)
    await run.observers.publish(event)
    await run.saver.save()
