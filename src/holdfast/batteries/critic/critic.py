"""The critic: watches any number of runs."""

from collections.abc import Sequence
from datetime import timedelta

from holdfast.batteries.critic.watchdog import CriticError, Escalator, ExtendOnce, IdleWatch, WatchTimeouts
from holdfast.clock import CLOCK, Clock
from holdfast.core.observer import AttemptControl, Observer


class Critic:
    """Asks an escalator about an idle run, and kills a run that stays idle until the backstop."""

    def __init__(
        self,
        *escalators: Escalator,
        soft_timeout: timedelta | None = None,
        backstop: float = 3.0,
        ceiling: timedelta | None = None,
        escalator_timeout: timedelta = timedelta(seconds=30),
        clock: Clock | None = None,
    ) -> None:
        """Create a critic.

        Args:
            escalators: asked in order; the next one is asked if a decision says `escalate`. Default: `ExtendOnce`.
            soft_timeout: idle time after which an escalator is asked. Default: the agent's `max_runtime`; a run
                with neither is not watched.
            backstop: a run that is idle for this many soft timeouts, plus its extensions, is killed.
            ceiling: maximum execution time, after which a run is killed, idle or not.
            escalator_timeout: an escalator that takes longer counts as failed.

        Raises:
            CriticError: the backstop is not after the soft timeout, or a duration is not positive.
        """
        if backstop <= 1:
            raise CriticError(f"backstop is {backstop}: give more than 1, so that it comes after the soft timeout")
        for name, value in (
            ("soft_timeout", soft_timeout),
            ("ceiling", ceiling),
            ("escalator_timeout", escalator_timeout),
        ):
            if value is not None and value <= timedelta(0):
                raise CriticError(f"{name} is {value}: give a positive duration")
        self._escalators: Sequence[Escalator] = escalators or (ExtendOnce(),)
        self._soft_timeout, self._backstop, self._ceiling = soft_timeout, backstop, ceiling
        self._escalator_timeout, self._clock = escalator_timeout, clock or CLOCK.get()

    def begin(self, attempt: AttemptControl, max_runtime: timedelta | None) -> Observer | None:
        """Watch an attempt. Returns `None` if it has no soft timeout, so that its own bounds apply."""
        soft = self._soft_timeout or max_runtime
        if soft is None:
            return None
        timeouts = WatchTimeouts(
            soft=soft.total_seconds(),
            hard=soft.total_seconds() * self._backstop,
            ceiling=self._ceiling.total_seconds() if self._ceiling else float("inf"),
            escalator=self._escalator_timeout.total_seconds(),
        )
        return IdleWatch(attempt, timeouts=timeouts, escalators=self._escalators, clock=self._clock)
