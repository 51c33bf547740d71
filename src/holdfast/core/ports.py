"""The ports that a host may plug into a run. All are optional: with none, a run is bounded and in memory."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError
from holdfast.core.metrics import RunMetrics
from holdfast.core.observer import AttemptControl, Observer, ObserverFactory
from holdfast.core.run.info import RunInfo
from holdfast.core.run.mail import Mail
from holdfast.core.run.messages import MessageCodec, Usage
from holdfast.core.run.run_events import Event
from holdfast.core.run.state import RunState
from holdfast.core.run.status import AttemptEnd, RunStatus

#: Functions that can write to the database of a store in the transaction that records their result: none, sync ones, or
#: sync and async ones.
Transactions = Literal["none", "sync", "any"]


@runtime_checkable
class Closeable(Protocol):
    """A port that holds a database or unwritten rows: the executor closes it when its last attempt has ended."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Leave:
    """How an attempt ends whose run has not ended."""

    end: Literal[AttemptEnd.INTERRUPTED, AttemptEnd.WAITING, AttemptEnd.PARKED] = AttemptEnd.INTERRUPTED
    #: Parked although its cancel was requested: the attempt has tried to cancel it, and needs a person.
    despite_cancel: bool = field(default=False, kw_only=True)
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
            MailArrived: the run has unread mail of a topic in `state.unless_mail`. Nothing was written.
            RunParked: the state cannot be written, such as a transcript over its limit. The run waits for a person.
        """
        ...

    async def complete(self, output: Any, usage: Usage) -> bool:
        """Record success. No later save brings the checkpoint back.

        Returns False if a message has arrived that the run has not read: a worker resumes the run, which reads it.
        """
        ...

    async def fail(self, error: BaseException) -> None:
        """Record failure or cancellation: recovery ignores the run. No later save brings the checkpoint back.

        The unfinished child runs of a cancelled run are cancelled first.
        """
        ...

    async def leave(self, leaving: Leave) -> bool:
        """Write progress that the save interval deferred, and end the attempt of a run that has not ended.

        Returns False if the mail that the run would wait for has arrived: a worker resumes the run immediately.

        Raises:
            RunLost: another worker owns the run. Nothing was written.
        """
        ...

    async def verify(self) -> None:
        """Prove before a `once` call that this process still owns the run.

        Raises:
            RunLost: another worker owns the run.
        """
        ...

    async def transact(
        self,
        state: RunState,
        function: Callable[[Any], Any],
        record: Callable[[Any], Callable[[], None]],
    ) -> Any:
        """Call `function` with a connection to the store's database, and save the state with what it returned.

        Its writes and the save are one transaction: both are there, or neither is. Returns what the function returned.

        Args:
            record: puts the value that the function returned into the state, and returns a function that removes it:
                called if the transaction is rolled back after that.

        Raises:
            RunLost: another worker owns the run. Nothing was written. Anything that `function` raises: likewise.
            SaveFailed: the store did not answer.
        """
        ...

    @property
    def transactions(self) -> Transactions:
        """The functions that `transact` can call."""
        ...

    @property
    def owner(self) -> str:
        """The worker that holds the claim, as the store records it. Empty without claims."""
        ...

    @property
    def proven_until(self) -> float:
        """The monotonic time until which the claim is known to hold. `math.inf` without claims."""
        ...


class NullCheckpointer:
    """The checkpointer of a run without a store: every method succeeds and does nothing."""

    owner: str = ""
    proven_until: float = math.inf
    transactions: Transactions = "none"

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

    async def transact(
        self, state: RunState, function: Callable[[Any], Any], record: Callable[[Any], Callable[[], None]]
    ) -> Any:
        raise DefinitionError("a run without a store has no transactions")


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
    #: A cancel was requested: its steps are undone, and it ends.
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOutcome:
    """A child run that ended before its parent could record its result."""

    output: Any
    usage: Usage
    #: The text of its error, if it failed.
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundRun:
    """A run that another one has started in the background, as the store has it."""

    run_id: str
    agent_name: str
    status: RunStatus
    #: Why it is parked or failed, or what it waits for.
    reason: str
    started_by: str | None
    #: `None`: it has not ended, or its outcome was not asked for.
    outcome: ChildOutcome | None = None


class BackgroundRuns(Protocol):
    """Runs in the background of others. Raises what its store raises."""

    async def submit(self, info: RunInfo) -> bool:
        """Queue a run for any worker. Return False if it is there already."""
        ...

    async def read(self, run_id: str) -> BackgroundRun | None:
        """Return a run, with its outcome if it has ended; `None` if there is none."""
        ...

    async def list_children(self, parent_run_id: str) -> Sequence[BackgroundRun]:
        """Return the children in the background of a run, oldest first, without their outcomes."""
        ...

    async def read_notices(self, run_id: str) -> Sequence[Mail]:
        """Return the unread notices of a run that others have ended."""
        ...

    async def send(self, run_id: str, text: str, mail_id: str) -> bool:
        """Send a message. Return False if the run has ended."""
        ...

    async def cancel(self, run_id: str) -> None:
        """Cancel a run, or ask its worker to. Does nothing if it has ended."""
        ...


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


@runtime_checkable
class Critic(Protocol):
    """Watches attempts for activity."""

    def begin(self, attempt: AttemptControl, max_runtime: timedelta | None) -> Observer | None:
        """Watch an attempt, with `max_runtime` as the soft timeout. `None`: no watch, and `max_runtime` stops the run.

        The watch also gets the public events of child runs, which are activity of their parent.
        """
        ...


@runtime_checkable
class Telemetry(ObserverFactory, Protocol):
    """Observes attempts, exports counters, and carries a trace from `submit` to the worker."""

    def export(self, metrics: RunMetrics) -> None:
        """Export these counters from now on."""
        ...

    def submit(self, info: RunInfo) -> Mapping[str, Any]:
        """A run is submitted here: return port data with the trace context, for the worker that executes it."""
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
    #: Such as the audit, telemetry and event streams. The log and the metrics are always there.
    observers: tuple[ObserverFactory, ...] = ()
    budget: Budget | None = None
    rate_limiter: RateLimiter | None = None
    critic: Critic | None = None
    listener: RunListener | None = None
    extra_tools: ToolProvider | None = None
    background: BackgroundRuns | None = None
    #: The agents that code may name, by name.
    agents: Mapping[str, AgentSource] = field(default_factory=dict)
