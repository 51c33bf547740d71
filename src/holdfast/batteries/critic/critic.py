"""The critic: watches any number of runs with one timer."""

from collections.abc import Sequence
from datetime import timedelta

from holdfast.batteries.critic.escalation import CriticError, Escalator, ExtendOnce
from holdfast.batteries.critic.timer import TimerQueue
from holdfast.batteries.critic.watchdog import IdleWatch, WatchTimeouts
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.info import RunInfo
from holdfast.core.ports import RunControl, Watch
from holdfast.core.state import RunState


class Critic:
    """Two tiers: a silent run wakes an escalator; one that stays silent is killed by the backstop."""

    def __init__(
        self,
        *escalators: Escalator,
        soft_timeout: timedelta | None = None,
        backstop: float = 3.0,
        ceiling: timedelta | None = None,
        escalator_timeout: timedelta = timedelta(seconds=30),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a critic.

        Args:
            escalators: asked in turn, the next one if the one before says `escalate`. Without any: `ExtendOnce`.
            soft_timeout: how long a run may be silent before an escalator is asked. `None`: its agent's `max_runtime`;
                a run that has none either is not watched.
            backstop: a run that is silent for so many soft timeouts, and its extensions, is killed.
            ceiling: a run that was driven for so long is killed, silent or not.
            escalator_timeout: an escalator that takes longer is taken to have failed.

        Raises:
            CriticError: the backstop would come before the soft timeout, or a time is not positive.
        """
        if backstop <= 1:
            raise CriticError(f"backstop is {backstop}: it has to come after the soft timeout, so give more than 1")
        for name, value in (
            ("soft_timeout", soft_timeout),
            ("ceiling", ceiling),
            ("escalator_timeout", escalator_timeout),
        ):
            if value is not None and value <= timedelta(0):
                raise CriticError(f"{name} is {value}: give a positive duration")
        self._escalators: Sequence[Escalator] = escalators or (ExtendOnce(),)
        self._soft_timeout, self._backstop, self._ceiling = soft_timeout, backstop, ceiling
        self._escalator_timeout, self._clock = escalator_timeout, clock
        self._timers = TimerQueue(clock)

    def begin(self, info: RunInfo, state: RunState, control: RunControl, max_runtime: timedelta | None) -> Watch | None:
        """Watch a run. `None`: it has no soft timeout, so there is no watch and its hard end stays in force."""
        soft = self._soft_timeout or max_runtime
        if soft is None:
            return None
        limits = WatchTimeouts(
            soft=soft.total_seconds(),
            hard=soft.total_seconds() * self._backstop,
            ceiling=self._ceiling.total_seconds() if self._ceiling else float("inf"),
            escalator=self._escalator_timeout.total_seconds(),
        )
        return IdleWatch(
            info, state, control, timeouts=limits, escalators=self._escalators, timers=self._timers, clock=self._clock
        )
