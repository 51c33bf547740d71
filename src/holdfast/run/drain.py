"""Bringing all runs to a stop, in a time that is known beforehand even if the store does not answer."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any

from holdfast.clock import Clock, Timer
from holdfast.run.errors import Shutdown
from holdfast.run.live import LiveRun, log

#: A store that does not take the last words of a run for so long is not waited for any more.
LAST_WORDS = timedelta(seconds=5)


class Drain:
    """Lets runs reach their next step boundary, then stops them, then leaves those that only wait for the store."""

    def __init__(self, live: Mapping[str, LiveRun], idle: asyncio.Event, clock: Clock) -> None:
        """`live` are the runs under way, among which there are no new ones; `idle` is set when there are none left."""
        self._live, self._idle, self._clock = live, idle, clock
        self._timer: Timer | None = None

    async def finish(self, grace: timedelta) -> None:
        """Return when all runs have stopped."""
        for live in self._live.values():
            live.draining = True
        self._timer = self._clock.call_later(grace, self._stop_all)
        try:
            await self._idle.wait()
        finally:
            self._timer.cancel()

    def _stop_all(self) -> None:
        for live in list(self._live.values()):
            live.stop(
                Shutdown(f"run {live.info.run_id} was stopped for a shutdown within step {live.state.iteration + 1}")
            )
        self._look_again()

    def _look_again(self) -> None:
        waiting = {run_id for run_id, live in self._live.items() if live.waits_for_store}
        under_way = len(self._live)
        self._timer = self._clock.call_later(LAST_WORDS / 2, lambda: self._give_up(waiting, under_way))

    def _give_up(self, waiting: set[str], under_way: int) -> None:
        """Leave the runs that wait for the store, as they did at the last look, if not one run has ended since."""
        silent = [run_id for run_id in sorted(waiting & self._live.keys()) if self._live[run_id].waits_for_store]
        if silent and len(self._live) == under_way:
            log.error(
                "the store does not answer, and the shutdown does not wait for it: these runs stay as they were last "
                "saved, and recovery goes on with them when this process has ended: %s",
                ", ".join(silent),
            )
            for run_id in silent:
                self._live[run_id].give_up()
        self._look_again()


async def within(limit: timedelta, work: Coroutine[Any, Any, None], clock: Clock) -> bool:
    """Do `work`, which is cancelled after `limit`, and again as often as it lasts so long. Returns whether it was not.

    Raises what it raises.
    """
    task = asyncio.ensure_future(work)
    timer: Timer | None = None

    def wait() -> None:
        nonlocal timer
        timer = clock.call_later(limit, stop)

    def stop() -> None:
        task.cancel()
        wait()

    wait()
    try:
        await asyncio.wait([task])
    finally:
        if timer is not None:
            timer.cancel()
        task.cancel()
    if task.cancelled():
        return False
    task.result()
    return True


async def close_in_time(what: str, close: Callable[[], Coroutine[Any, Any, None]], clock: Clock) -> None:
    """Close `what`, one of the last things of a host. Trouble is logged: it must not mask why the host stops."""
    try:
        if not await within(LAST_WORDS, close(), clock):
            log.error("%s does not answer, and was left without being closed", what)
    except Exception as exc:  # a host's own store or port may raise anything
        log.error("%s could not be closed: %s", what, exc, exc_info=exc)
