"""The pauses of a run before it repeats a call. A shutdown does not wait for them."""

import asyncio
import functools
from datetime import timedelta

from holdfast.clock import Clock
from holdfast.core.execution.stop_state import StopState


class Pauses:
    """The pauses of one run that are in progress."""

    __slots__ = ("_clock", "_pauses", "_stop_state", "calls_in_progress")

    def __init__(self, clock: Clock, stop_state: StopState) -> None:
        self._clock, self._stop_state = clock, stop_state
        #: Tool calls of the run that were started and whose results are not recorded. Those that pause are among them.
        self.calls_in_progress = 0
        #: Each is resolved when its pause ends: True if a shutdown ends it.
        self._pauses: list[asyncio.Future[bool]] = []

    async def wait(self, delay: timedelta) -> bool:
        """Pause for `delay`. Return whether a shutdown has ended the pause before."""
        over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        timer = self._clock.call_later(delay, functools.partial(_resolve, over, False))
        self._pauses.append(over)
        self.end_if_draining()
        try:
            return await over
        finally:
            timer.cancel()
            self._pauses.remove(over)

    def end_if_draining(self) -> None:
        """End the pauses if the host shuts down and the run only pauses.

        While other calls of the run are in progress the pauses continue: stopping those calls could leave a `once` call
        in doubt.
        """
        if self._stop_state.draining and self.calls_in_progress <= len(self._pauses):
            for over in self._pauses:
                _resolve(over, True)


def _resolve(over: "asyncio.Future[bool]", value: bool) -> None:
    if not over.done():
        over.set_result(value)
