"""`Restart`: a workflow begins again with new arguments, under the same run id and without its recorded steps."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.run.messages import User
from holdfast.core.run.state import RunState
from holdfast.core.run.turns import Totals

#: Characters of the new arguments that a transcript shows.
_SHOWN_LENGTH = 2000


class Restart:
    """Return this from a workflow to call its function again with these arguments, as the same run.

    The recorded steps are dropped, so a loop that never ends stays small. Usage, steps and time are counted on.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args, self.kwargs = args, kwargs

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"Restart({', '.join(given)})"


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """What a workflow does between two restarts. After one, its first message holds this. The default: the first life.

    It is in the journal that belongs to it, and not beside it: no write can have one without the other.
    """

    restarts: int = 0
    #: The steps of the run when this life began.
    first_step: int = 0
    #: The arguments with which it began; `None`: the input of the run.
    arguments: dict[str, Any] | None = None

    @classmethod
    def from_state(cls, state: RunState) -> "Life":
        message = state.history[0] if state.history else None
        if not isinstance(message, User) or not message.content:
            return cls()
        return msgspec.convert(message.content[0], cls)

    def enter(self, state: RunState) -> None:
        """Let the bound on steps count from the beginning of this life."""
        state.turn_totals = Totals(steps=self.first_step)

    def restart(self, state: RunState, arguments: Mapping[str, Any]) -> None:
        """Begin the next life. The caller saves the state, in one write."""
        text = msgspec.json.encode(arguments).decode()
        shown = text if len(text) <= _SHOWN_LENGTH else f"{text[:_SHOWN_LENGTH]}..."
        following = Life(restarts=self.restarts + 1, first_step=state.steps, arguments=dict(arguments))
        state.restart([User(shown, [msgspec.to_builtins(following)])])
