"""What a host may plug into a run. Every port is optional; with none, a run is bounded and in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Protocol

import msgspec

from holdfast.core.info import RunInfo
from holdfast.core.message import MessageCodec, Usage
from holdfast.core.state import RunState
from holdfast.core.tool import Tool
from holdfast.core.tool_context import ToolContext


class Checkpointer(Protocol):
    """The handle of one run on a store."""

    async def save(self, state: RunState, *, force: bool = False) -> None:
        """Write what is new in `state` since the last save. An urgent save is not throttled.

        Raises:
            RunLost: another worker owns the run. Nothing was written.
            RunParked: it cannot be written as it is, and the run has to wait for a person.
        """
        ...

    async def verify_claim(self) -> None:
        """Make sure that the run is still owned, before something that must not happen twice.

        Raises:
            RunLost: another worker owns the run.
        """
        ...

    async def complete(self, output: Any, usage: Usage) -> None:
        """The run succeeded. No save after this brings its checkpoint back."""
        ...

    async def fail(self, error: BaseException, *, may_have_children: bool = False) -> None:
        """The run failed or was cancelled: no recovery candidate any more. No save after this brings it back.

        Args:
            may_have_children: it may have started runs that are not over. With a run that was cancelled, they end.
        """
        ...

    async def park(self, reason: str) -> None:
        """The run waits for a person or a condition; its checkpoint stays."""
        ...

    async def release(self, reason: str = "", delay: timedelta = timedelta(0)) -> None:
        """Write what a throttle held back, and leave the checkpoint for recovery, which waits for `delay`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """An interrupted run that was claimed and loaded: what it takes to go on with it."""

    info: RunInfo
    checkpointer: Checkpointer
    state: RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """A child run that ended before its parent could record its result."""

    output: Any
    usage: Usage
    #: What it failed with, if it did.
    error: str | None = None


class CheckpointerFactory(Protocol):
    """Makes runs durable."""

    async def begin(self, info: RunInfo) -> Checkpointer | None:
        """The handle of a new run; `None` if this run is not to be durable. Asked once per run."""
        ...

    async def attach_child(self, info: RunInfo, codec: MessageCodec) -> Resumption | ChildOutcome | None:
        """The child run that an earlier life of its parent started; `None` if there is none."""
        ...

    async def discard_children(self, run_ids: Sequence[str]) -> None:
        """The results of these child runs are safe with their parent: drop what was kept of them."""
        ...

    async def close(self) -> None:
        """Called last at a shutdown, when every checkpoint is settled."""
        ...


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened in a run, for whoever watches it live."""

    kind: Literal["step", "reply", "text", "tool_start", "tool_end", "phase", "resumed", "steered"]
    step: int = 0
    #: The tool's or the phase's name.
    name: str = ""
    call_id: str = ""
    text: str = ""
    error: bool = False


class Recorder(Protocol):
    """The audit of one run. Methods return at once; what is slow happens elsewhere."""

    def start(self, *, resumed: bool) -> None: ...

    def step(self, step: int, usage: Usage) -> None:
        """A step is finished; `usage` is the run's own, in all."""
        ...

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None: ...

    def event(self, name: str, detail: str) -> None: ...

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None: ...


class Audit(Protocol):
    """Keeps a record of every run."""

    def begin(self, info: RunInfo, state: RunState) -> Recorder:
        """The recorder of one run, or of one more life of it. What has to outlive the process goes into the notes."""
        ...


class Budget(Protocol):
    """Says whether a run may go on spending."""

    async def check(self, info: RunInfo, state: RunState) -> None:
        """Called before the run and before each step. Raise a `RunParked` to stop it."""
        ...

    async def commit(self, info: RunInfo, state: RunState) -> None:
        """Called after each step and at the end with the run's totals, so that what was counted is never counted twice.

        Children commit for themselves: count `state.own_usage`.
        """
        ...


class RunControl(Protocol):
    """What a critic may do to the run it watches."""

    def steer(self, text: str) -> None:
        """Put a message in front of the run's next step.

        Raises:
            PayloadError: the text cannot be stored. Nothing was changed.
        """
        ...

    def kill(self, reason: str) -> None:
        """End the run with `RunKilled`."""
        ...

    async def save_annotations(self) -> None:
        """Make what is in the run's notes durable now, rather than with its next step."""
        ...


class Watch(Protocol):
    """A critic's watch on one run."""

    def activity(self) -> None:
        """The run showed a sign of life. Returns at once."""
        ...

    def close(self) -> None: ...


class Critic(Protocol):
    """Watches runs for signs of life."""

    def begin(self, info: RunInfo, state: RunState, control: RunControl, max_runtime: timedelta | None) -> Watch | None:
        """Watch a run; `max_runtime` is then the soft trigger. `None`: no watch, and it stays the run's hard end."""
        ...


class RunListener(Protocol):
    """Where what a run says goes to."""

    async def on_event(self, info: RunInfo, event: RunEvent) -> None: ...

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


class ToolProvider(Protocol):
    """Other agents and skills that a run may call as tools."""

    async def tools(self, info: RunInfo) -> Sequence[Tool]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of an executor."""

    checkpoints: CheckpointerFactory | None = None
    audit: Audit | None = None
    budget: Budget | None = None
    critic: Critic | None = None
    listener: RunListener | None = None
    extra_tools: ToolProvider | None = None
