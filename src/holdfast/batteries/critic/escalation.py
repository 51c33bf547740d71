"""What can go wrong with a critic.

What an escalator is told, and what it may answer.

Ready escalators.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import msgspec

from holdfast.core.info import RunInfo
from holdfast.core.state import RunState
from holdfast.errors import HoldfastError


class CriticError(HoldfastError):
    """The critic was put together in a way that cannot work, or an escalator's answer is none."""


class IdleRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that shows no sign of life, as an escalator sees it."""

    info: RunInfo
    #: The run as it is now. For reading only.
    state: RunState
    #: How long nothing has happened.
    idle_for: timedelta
    #: After how long the escalator is asked.
    soft_timeout: timedelta
    #: How long until the backstop kills the run.
    until_kill: timedelta
    #: How often this run was extended already, in all its lives.
    extensions: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done about a silent run. A default one does nothing."""

    #: End the run. Whatever else the decision says, and whatever a later one says.
    kill: bool = False
    #: A message that is put in front of the run's next step.
    nudge: str = ""
    #: Move the backstop away by so much.
    extend: timedelta = timedelta(0)
    #: Ask the next escalator.
    escalate: bool = False
    reason: str = ""


#: Asked once per silence what to do about it. An answer that comes when the silence is over changes nothing.
Escalator = Callable[[IdleRun], Awaitable[Decision | None]]


class ExtendOnce:
    """Gives a silent run one more soft timeout, once in its whole life."""

    async def __call__(self, idle_run: IdleRun) -> Decision | None:
        if idle_run.extensions:
            return None
        return Decision(extend=idle_run.soft_timeout, reason="one extension per run")
