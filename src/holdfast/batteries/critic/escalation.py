"""Escalators: the idle run they are asked about, their decision, and the default escalator."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from holdfast.core.info import RunInfo
from holdfast.core.state import RunState
from holdfast.errors import HoldfastError


class CriticError(HoldfastError):
    """The critic's settings are invalid, or an escalator returned something else than a decision.

    What to do: Correct the setting that the message names, or let the escalator return a decision.
    """


class IdleRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run without activity, as an escalator sees it."""

    info: RunInfo
    #: The run's current state. Read only.
    state: RunState
    #: Time since the last activity.
    idle_for: timedelta
    #: Idle time after which the escalator is asked.
    soft_timeout: timedelta
    #: Time left until the backstop kills the run.
    until_kill: timedelta
    #: Number of extensions so far, in all attempts of the run.
    extensions: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The action to take on an idle run. By default none."""

    #: Kill the run. Overrides every other field.
    kill: bool = False
    #: A message to insert before the run's next step.
    nudge: str = ""
    #: Postpone the backstop by this long.
    extend: timedelta = timedelta(0)
    #: Ask the next escalator.
    escalate: bool = False
    reason: str = ""


#: Called once per idle period. A decision that arrives after the run became active again is ignored.
Escalator = Callable[[IdleRun], Awaitable[Decision | None]]


class ExtendOnce:
    """Extends an idle run by one soft timeout, once per run."""

    async def __call__(self, idle_run: IdleRun) -> Decision | None:
        if idle_run.extensions:
            return None
        return Decision(extend=idle_run.soft_timeout, reason="one extension per run")
