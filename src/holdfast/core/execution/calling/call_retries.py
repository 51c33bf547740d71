"""The tries of one tool call: timeout, pauses, and its thread."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.clock import Clock
from holdfast.concurrency import run_in_background
from holdfast.core.agents.calls import Effect
from holdfast.core.agents.retry import Backoff, Retry
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import current_call
from holdfast.core.agents.tool_threads import release_slot_during
from holdfast.core.errors import ToolTimeout, convert_process_exit
from holdfast.core.execution.attempt import Attempt, report_retry


def call_tool(
    attempt: Attempt, tool: Tool, call_id: str, start: Callable[[], Coroutine[Any, Any, Any]]
) -> Awaitable[Any]:
    """Call a tool within its timeout, and retry it as its `Retry` says. Raises what the last try raises.

    Args:
        start: starts one try.
    """
    retry = tool.policy.retry
    if retry is None:
        return _start_try(attempt, tool, start)
    return retry_call(attempt, retry, tool.name, call_id, partial(_start_try, attempt, tool, start))


def _start_try(attempt: Attempt, tool: Tool, start: Callable[[], Coroutine[Any, Any, Any]]) -> Awaitable[Any]:
    work = start()
    if tool.timeout is not None:
        unknown = tool.effect is Effect.ONCE
        may_be_running = tool.in_thread and tool.effect is not Effect.TRANSACTION  # that one commits nothing any more
        error = ToolTimeout(tool.name, tool.timeout, may_be_running=may_be_running, effect_unknown=unknown)
        work = run_within_timeout(work, tool.timeout, error, attempt.services.clock)
    return await_thread(attempt, work) if tool.in_thread else work


async def retry_call(
    attempt: Attempt,
    policy: Retry,
    tool: str,
    call_id: str,
    start: Callable[[], Awaitable[Any]],
    *,
    outcomes: tuple[type[Exception], ...] = (),
) -> Any:
    """Make a tool call, and retry it after transient errors, as `policy` says. Raises what the last try raises.

    Args:
        outcomes: exceptions by which the tool does not fail, such as a request for approval.
    """
    backoff: Backoff | None = None
    while True:
        try:
            return await start()
        except Exception as exc:  # user code may raise anything
            if isinstance(exc, outcomes) or attempt.stop_state.is_resumable_after(exc) or not policy.is_transient(exc):
                raise
            if attempt.stop_state.is_stopping:  # the call has no result: it is repeated if the run resumes
                raise asyncio.CancelledError from exc
            backoff = backoff or Backoff(policy, attempt.services.clock)
            delay = backoff.next_delay(exc)
            if delay is None:
                raise
            await report_retry(attempt, backoff.failed_tries, delay, exc, tool, call_id)
        await release_slot_during(attempt.stop_state.pause(delay))
        if (children := current_call().children) is not None:
            children.begin_try()


async def await_thread(attempt: Attempt, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of work in a thread, which cannot be cancelled.

    An interrupted run waits for it, because another worker may resume the run at once and must not repeat work
    that is still in progress. A failed, cancelled, abandoned or hurried run does not wait.
    """
    stop = attempt.stop_state
    task = run_in_background(convert_process_exit(work))
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not attempt.is_hurried:
                await attempt.receive_stop()
            ended = task.done() or stop.error is None or not stop.is_resumable_after(stop.error)
            if ended or attempt.is_hurried or stop.abandoned:
                if stop.draining:  # the event loop may end before the thread does
                    task.cancel()
                task.add_done_callback(_mark_retrieved)
                raise


def _mark_retrieved(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging an exception that no caller waits for."""
    if not task.cancelled():
        task.exception()


async def run_within_timeout(
    work: Coroutine[Any, Any, Any], timeout: timedelta, error: ToolTimeout, clock: Clock
) -> Any:
    """Return the result of `work`. After `timeout` it is cancelled; a value that it still returns counts.

    Raises:
        ToolTimeout: `error`. It was cancelled.
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
        raise error from None
    finally:
        timer.cancel()
