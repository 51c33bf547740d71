"""What is done when a run has ended, one way or the other. Raises nothing: that would mask how the run ended."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from holdfast.run.errors import RunInterrupted, RunParked, Shutdown
from holdfast.run.live import LiveRun, log
from holdfast.run.outcome import Result, Settlement

#: A run that has ended, what becomes of its checkpoint, and the error it ended with.
_Closing = Callable[[LiveRun, Settlement, BaseException | None], Awaitable[None]]


async def settle(live: LiveRun, error: BaseException | None, result: tuple[Result, Any] | None) -> None:
    """Do to the checkpoint what the way out demands, and close the ports.

    Args:
        result: what the run gives, and its output as it is stored, if it succeeded.
    """
    way = live.settlement(error)
    try:
        # What the last step used is counted before the run is gone from the store: after it, nobody would know.
        await _close(live, way, error, _commit_budget)
        if live.checkpointer is not None and not live.given_up:
            await _settle_checkpoint(live, way, error, result)
    except asyncio.CancelledError:
        if not live.given_up:
            raise
    except Exception as exc:  # whatever a store raises
        log.error("run %s: its checkpoint could not be settled (%s)", live.info.run_id, way, exc_info=exc)
    await _close(live, way, error, _close_watch, _close_audit, _tell_error)


async def give_back(live: LiveRun) -> None:
    """Leave a run that was claimed and cannot be driven here for others."""
    if live.checkpointer is not None:
        try:
            await live.checkpointer.release()
        except Exception as exc:  # whatever a store raises
            log.error("run %s: its claim could not be given back", live.info.run_id, exc_info=exc)


async def _settle_checkpoint(
    live: LiveRun, way: Settlement, error: BaseException | None, result: tuple[Result, Any] | None
) -> None:
    checkpointer = live.checkpointer
    assert checkpointer is not None
    if way is Settlement.COMPLETE:
        assert result is not None
        await checkpointer.complete(result[1], result[0].usage)
    elif way is Settlement.FAIL:
        assert error is not None
        await checkpointer.fail(error, may_have_children=live.may_have_children)
    elif way is not Settlement.ABANDON:
        await _save_rest(live)
        if isinstance(error, RunParked):
            await checkpointer.park(error.why)
        else:
            # The host's own shutdown exception says nothing worth keeping.
            left = error if isinstance(error, RunInterrupted) and not isinstance(error, Shutdown) else None
            await checkpointer.release(str(left or ""), left.retry_after if left else timedelta(0))


async def _save_rest(live: LiveRun) -> None:
    """What the run did since its last save, so that recovery begins there. What was saved before is safe anyway."""
    try:
        await live.save(urgent=True)
    except Exception as exc:  # such as a transcript over its cap: then the run stays as it was saved
        log.warning("run %s: its last moments were not saved: %s", live.info.run_id, exc)


async def _close(live: LiveRun, way: Settlement, error: BaseException | None, *closings: _Closing) -> None:
    for closing in closings:
        try:
            await closing(live, way, error)
        except Exception as exc:  # a host's own port may raise anything
            log.error("run %s: a port failed while the run was settled", live.info.run_id, exc_info=exc)


async def _commit_budget(live: LiveRun, way: Settlement, error: BaseException | None) -> None:
    if live.ports.budget is not None and way is not Settlement.ABANDON:
        live.count_time()
        await live.ports.budget.commit(live.info, live.state)


async def _close_watch(live: LiveRun, way: Settlement, error: BaseException | None) -> None:
    if live.watch is not None:
        live.watch.close()


async def _close_audit(live: LiveRun, way: Settlement, error: BaseException | None) -> None:
    if live.recorder is not None:
        live.recorder.close(way.value, live.state.own_usage, error)


async def _tell_error(live: LiveRun, way: Settlement, error: BaseException | None) -> None:
    if error is not None and live.ports.delivery is not None:
        await live.ports.delivery.error(live.info, error)
