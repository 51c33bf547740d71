"""What a tool can know about the call it is in."""

import hashlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.core.errors import RunError
from holdfast.core.info import RunInfo

#: Starts, or meets again, a run below this call: agent, prompt and key in, its `Result` out.
ChildRunner = Callable[[Any, str, str | None], Awaitable[Any]]


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call of one run."""

    info: RunInfo
    #: Counted from one over the whole run. Models use the id of a call again in a later step.
    step: int
    call_id: str
    tool: str
    arguments: Any
    start_child: ChildRunner | None = None

    @property
    def run_id(self) -> str:
        return self.info.run_id

    @property
    def idempotency_key(self) -> str:
        """The same whenever this call of this run is made, and different for every other. Hand it to the far side."""
        digest = hashlib.sha256(f"{self.info.run_id}\n{self.step}\n{self.call_id}".encode()).hexdigest()
        return f"hf-{digest[:32]}"

    async def run(self, agent: Any, prompt: str, *, key: str | None = None) -> Any:
        """Run another agent from inside this tool and return its `Result`.

        The child's id is derived from this call, so a call that is made again after a crash meets the same child,
        half-way or finished, and never starts a second one. The tool has to say that it is `idempotent` for that.
        A child that still runs when this call is over is ended.

        Args:
            key: tells several children of one call apart; without it they are counted in the order they are started.
                The same key again is the same child: its result, or its error.
        """
        if self.start_child is None:
            raise RunError("this call cannot start child runs: it is not driven by an executor")
        return await self.start_child(agent, prompt, key)


_CURRENT_CALL: ContextVar[ToolContext | None] = ContextVar("holdfast_call", default=None)


def current_call() -> ToolContext:
    """The call that the running tool is in. Works in the tool's thread and in tasks it starts.

    Raises:
        RunError: no tool of a run is running here.
    """
    context = _CURRENT_CALL.get()
    if context is None:
        raise RunError("current_call() works only inside a tool that a run has called")
    return context
