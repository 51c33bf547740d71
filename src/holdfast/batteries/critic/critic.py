"""The critic: watches any number of runs with one timer."""

from collections.abc import Sequence
from datetime import timedelta

from holdfast.batteries.critic.alarm import Alarm
from holdfast.batteries.critic.decision import Escalator
from holdfast.batteries.critic.errors import CriticError
from holdfast.batteries.critic.policies import ExtendOnce
from holdfast.batteries.critic.watch import Limits, SilenceWatch
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.info import RunInfo
from holdfast.run.ports import RunControl, Watch
from holdfast.run.state import RunState


class Critic:
    """Two tiers: a silent run wakes an escalator; one that stays silent is killed by the backstop."""

    def __init__(
        self,
        *escalators: Escalator,
        soft_timeout: timedelta | None = None,
        backstop: float = 3.0,
        ceiling: timedelta | None = None,
        answer_within: timedelta = timedelta(seconds=30),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Make a critic.

        Args:
            escalators: asked in turn, the next one if the one before says `escalate`. Without any: `ExtendOnce`.
            soft_timeout: how long a run may be silent before an escalator is asked. `None`: its agent's `max_runtime`;
                a run that has none either is not watched.
            backstop: a run that is silent for so many soft timeouts, and its extensions, is killed.
            ceiling: a run that was driven for so long is killed, silent or not.
            answer_within: an escalator that takes longer is taken to have failed.

        Raises:
            CriticError: the backstop would come before the soft timeout, or a time is not positive.
        """
        if backstop <= 1:
            raise CriticError(f"backstop is {backstop}: it has to come after the soft timeout, so give more than 1")
        for name, value in (("soft_timeout", soft_timeout), ("ceiling", ceiling), ("answer_within", answer_within)):
            if value is not None and value <= timedelta(0):
                raise CriticError(f"{name} is {value}: give a positive duration")
        self._escalators: Sequence[Escalator] = escalators or (ExtendOnce(),)
        self._soft_timeout, self._backstop, self._ceiling = soft_timeout, backstop, ceiling
        self._answer_within, self._clock = answer_within, clock
        self._alarm = Alarm(clock)

    def begin(self, info: RunInfo, state: RunState, control: RunControl, max_runtime: timedelta | None) -> Watch | None:
        """Watch a run. `None`: it has no soft timeout, so there is no watch and its hard end stays in force."""
        soft = self._soft_timeout or max_runtime
        if soft is None:
            return None
        limits = Limits(
            soft=soft.total_seconds(),
            hard=soft.total_seconds() * self._backstop,
            ceiling=self._ceiling.total_seconds() if self._ceiling else float("inf"),
            answer=self._answer_within.total_seconds(),
        )
        return SilenceWatch(
            info, state, control, limits=limits, escalators=self._escalators, alarm=self._alarm, clock=self._clock
        )
