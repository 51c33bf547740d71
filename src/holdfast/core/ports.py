"""The ports that a host may plug into a run. All are optional: with none, a run is bounded and in memory."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import Mail
from holdfast.core.run.messages import MessageCodec, Usage
from holdfast.core.run.run_events import Event
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd
from holdfast.core.telemetry_port import Telemetry


@runtime_checkable
class Closeable(Protocol):
    """An audit, budget or rate limiter that holds a database or unwritten rows. The executor closes it at its end."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Leave:
    """How an attempt ends whose run has not ended."""

    end: Literal[AttemptEnd.INTERRUPTED, AttemptEnd.WAITING, AttemptEnd.PARKED] = AttemptEnd.INTERRUPTED
    #: For people who look at the run.
    reason: str = field(default="", kw_only=True)
    #: Waiting: the time that wakes the run, and the topics of mail that do.
    wake_at: datetime | None = field(default=None, kw_only=True)
    wake_on: tuple[str, ...] = field(default=(), kw_only=True)
    #: Interrupted: recovery does not take the run before.
    delay: timedelta = field(default=timedelta(0), kw_only=True)
    #: Interrupted: count the attempt as the death of its process would be, unless it has finished a step.
    strike: bool = field(default=False, kw_only=True)


class Checkpointer(Protocol):
    """Saves one run. A host with a loop of its own may implement it, or override methods of `NullCheckpointer`."""

    async def save(self, state: RunState, *, force: bool = False) -> None:
        """Write the part of `state` that is new since the last save. `force` ignores the save interval.

        Raises:
            RunLost: another worker owns the run. Nothing was written.
            RunParked: the state cannot be written, such as a transcript over its limit. The run waits for a person.
        """
        ...

    async def complete(self, output: Any, usage: Usage) -> bool:
        """Record success. No later save brings the checkpoint back.

        Returns False if a message has arrived that the run has not read: it is left to be resumed, and reads it.
        """
        ...

    async def fail(self, error: BaseException) -> None:
        """Record failure or cancellation: recovery ignores the run. No later save brings the checkpoint back.

        The unfinished child runs of a cancelled run are cancelled first.
        """
        ...

    async def leave(self, leaving: Leave) -> bool:
        """Write progress that the save interval deferred, and end the attempt of a run that has not ended.

        Returns False if the mail that the run would wait for has arrived: it is left to be resumed at once.
        """
        ...

    async def verify(self) -> None:
        """Prove before a `once` call that this process still owns the run.

        Raises:
            RunLost: another worker owns the run.
        """
        ...

    @property
    def proven_until(self) -> float:
        """The monotonic time until which the claim is known to hold. `math.inf` without claims."""
        ...


class NullCheckpointer:
    """The checkpointer of a run without a store: every method succeeds and does nothing."""

    proven_until: float = math.inf

    async def save(self, state: RunState, *, force: bool = False) -> None:
        return

    async def complete(self, output: Any, usage: Usage) -> bool:
        return True

    async def fail(self, error: BaseException) -> None:
        return

    async def leave(self, leaving: Leave) -> bool:
        return True

    async def verify(self) -> None:
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """An interrupted run that was claimed and loaded, ready to resume."""

    info: RunInfo
    checkpointer: Checkpointer
    state: RunState
    #: Its unread mail.
    mail: tuple[Mail, ...] = ()
    #: The worker that executed it before, if that one died.
    taken_from: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """A child run that ended before its parent could record its result."""

    output: Any
    usage: Usage
    #: The text of its error, if it failed.
    error: str | None = None


class CheckpointerFactory(Protocol):
    """Makes runs durable."""

    async def begin(self, info: RunInfo) -> Checkpointer | None:
        """Return the checkpointer of a new run; `None` if this run is not durable. Called once per run."""
        ...

    async def attach_child(self, info: RunInfo, codec: MessageCodec) -> Resumption | ChildOutcome | None:
        """Return the child run that an earlier attempt of its parent started; `None` if there is none."""
        ...

    async def cancel_children(self, run_id: str) -> None:
        """Cancel the unfinished child runs of a run that continues: the turn that started them has failed."""
        ...

    async def close(self, *, keep_claims: bool = False) -> None:
        """Called last at a shutdown, when every checkpoint is finalized.

        Args:
            keep_claims: a tool still works in its thread: other workers must not take its run before this process ends.
        """
        ...


class Recorder(Protocol):
    """The audit of one run. Methods return at once; slow work happens in the background."""

    def start(self, *, resumed: bool) -> None: ...

    def step(self, step: int, usage: Usage) -> None:
        """Record a finished step; `usage` is the run's own total."""
        ...

    def tool(self, call: ToolContext, *, effect: str, error: bool, took: timedelta) -> None: ...

    def event(self, name: str, detail: str) -> None: ...

    def close(self, status: str, usage: Usage, error: BaseException | None) -> None: ...


@runtime_checkable
class Audit(Protocol):
    """Keeps a record of every run."""

    def begin(self, info: RunInfo, state: RunState) -> Recorder:
        """Return the recorder of one attempt of a run. Data that has to survive the process goes into port data."""
        ...


@runtime_checkable
class Budget(Protocol):
    """Decides whether a run may spend more."""

    async def check(self, info: RunInfo, state: RunState) -> None:
        """Called before the run and before each step. Raise `RunParked` to stop it."""
        ...

    async def commit(self, info: RunInfo, state: RunState) -> None:
        """Called after each step and at the end with the run's totals: committing the same totals again adds nothing.

        Child runs commit for themselves: count `state.own_usage`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePermit:
    """The permission for one model call, which reserves tokens."""

    #: The limits that the call counts against.
    key: str
    at: datetime
    tokens: int


@runtime_checkable
class RateLimiter(Protocol):
    """Decides when runs may call their models."""

    async def acquire(self, info: RunInfo, model: str, tokens: int) -> RatePermit | datetime | None:
        """Return the permission for one call of `model`, or the time at which to ask again. `None`: it is not limited.

        Args:
            tokens: how many the last call of the run used; 0 if there was none.
        """
        ...

    def settle(self, permit: RatePermit, tokens: int) -> None:
        """Replace the reserved tokens with those that the call has used. Returns at once."""
        ...

    def pause(self, permit: RatePermit, delay: timedelta) -> None:
        """Permit no call with the same key for this time: the provider asked for it. Returns at once."""
        ...


class AttemptControl(Protocol):
    """The actions of a critic on the run it watches."""

    def steer(self, text: str) -> None:
        """Put a message in front of the run's next step.

        Raises:
            PayloadError: the text cannot be stored. Nothing was changed.
        """
        ...

    def kill(self, reason: str) -> None:
        """End the run with `RunKilled`."""
        ...

    async def save_now(self) -> None:
        """Save the run's port data now instead of with its next step."""
        ...


class Watch(Protocol):
    """A critic's watch on one run."""

    def activity(self) -> None:
        """Record activity of the run. Returns at once."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Critic(Protocol):
    """Watches runs for activity."""

    def begin(
        self, info: RunInfo, state: RunState, control: AttemptControl, max_runtime: timedelta | None
    ) -> Watch | None:
        """Watch a run, with `max_runtime` as the soft timeout. `None`: no watch, and `max_runtime` stops the run."""
        ...


class DraftWriter(Protocol):
    """Shows one reply under way to watchers. Methods return at once."""

    def add(self, *, text: str = "", reasoning: str = "") -> None: ...

    def restart(self) -> None:
        """Withdraw what was added: the model is asked again."""
        ...

    def close(self) -> None:
        """End the draft: the reply is complete, or the run has ended."""
        ...


class Watchers(Protocol):
    """Shows what the runs of this process do to those who watch them. Methods return at once."""

    def on_save(self, run_id: str) -> None:
        """Notify the watchers of a run that it was saved."""
        ...

    def open_draft(self, run_id: str, checkpointer: Checkpointer) -> DraftWriter | None:
        """Begin to show a reply; `None` if no draft of this run can be shown."""
        ...


@runtime_checkable
class RunListener(Protocol):
    """Receives the events, the output and the error of a run, in the executing process. Its events have no cursor."""

    async def on_event(self, info: RunInfo, event: Event) -> None: ...

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


@runtime_checkable
class ToolProvider(Protocol):
    """Other agents and skills that a run may call as tools."""

    async def tools(self, info: RunInfo) -> Sequence[Tool]: ...


class ToolProviders:
    """Several tool providers as one."""

    def __init__(self, providers: Iterable[ToolProvider]) -> None:
        self._providers = tuple(providers)

    async def tools(self, info: RunInfo) -> Sequence[Tool]:
        """Return the tools of all providers."""
        return [tool for provider in self._providers for tool in await provider.tools(info)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of an executor."""

    checkpoints: CheckpointerFactory | None = None
    audit: Audit | None = None
    budget: Budget | None = None
    rate_limiter: RateLimiter | None = None
    critic: Critic | None = None
    listener: RunListener | None = None
    watchers: Watchers | None = None
    extra_tools: ToolProvider | None = None
    telemetry: Telemetry | None = None
