"""Settings of an `App`: how runs are saved, and how its process executes stored runs."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import msgspec

from holdfast.core.errors import DefinitionError
from holdfast.core.redaction import Redact
from holdfast.core.validation import check_callable, check_count, check_duration, check_flag, check_type

LimitKind = Literal["agent", "key"]


class ConcurrencyLimit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `max_runs` runs of one agent, or with one key, execute at the same time. Set exactly one of the two.

    Zero pauses the agent or the key. A run with a parent executes within the parent's slot, and is not counted.
    """

    max_runs: int
    agent: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        """Raise `DefinitionError` unless this names one agent or one key, and a number of runs."""
        names = [name for name in (self.agent, self.key) if name is not None]
        if len(names) != 1 or not isinstance(names[0], str) or not names[0]:
            raise DefinitionError("a ConcurrencyLimit has either an agent or a key: give the name of one of them")
        if not isinstance(self.max_runs, int) or isinstance(self.max_runs, bool) or not 0 <= self.max_runs < 2**31:
            raise DefinitionError(f"max_runs is {self.max_runs!r:.80}: give a whole number, 0 or more")

    @property
    def kind(self) -> LimitKind:
        return "key" if self.agent is None else "agent"

    @property
    def name(self) -> str:
        """The name of the agent, or the key."""
        name = self.key if self.agent is None else self.agent
        assert name is not None  # `__post_init__` has checked it
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a finished run stays readable under its id. Zero removes a run when it ends.

    Until its retention has passed, `run` and `submit` with the same id attach to the run instead of repeating it.

    Raises:
        DefinitionError: a field has a wrong type or value.
    """

    done: timedelta = timedelta(days=7)
    failed: timedelta = timedelta(days=30)
    cancelled: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        check_duration("done", self.done)
        check_duration("failed", self.failed)
        check_duration("cancelled", self.cancelled)

    def of(self, status: str) -> timedelta:
        """Return how long a run with this terminal status is kept."""
        return {"done": self.done, "failed": self.failed, "cancelled": self.cancelled}[status]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """How runs are saved, and how long finished ones are kept.

    Raises:
        DefinitionError: a field has a wrong type or value.
    """

    #: Minimum time between two saves of a run: a crash loses at most this much progress. Zero saves every step.
    save_interval: timedelta = timedelta(0)
    #: Park a run whose transcript grows beyond this many bytes. `None`: no limit.
    max_transcript_bytes: int | None = None
    retention: Retention = Retention()
    #: Refuse a run that cannot be recorded, and interrupt one that cannot be saved. Otherwise log a warning.
    require_durability: bool = True
    #: How long a write that the run depends on is retried while the store does not answer.
    store_timeout: timedelta = timedelta(seconds=30)
    #: Removes secrets from everything that is stored, except ids and names. A resumed run gets the redacted text.
    #: Two prompts that differ only in their secrets are the same request.
    redact: Redact | None = None

    def __post_init__(self) -> None:
        check_duration("save_interval", self.save_interval)
        if self.max_transcript_bytes is not None:
            check_count("max_transcript_bytes", self.max_transcript_bytes)
        check_type("retention", self.retention, Retention)
        check_flag("require_durability", self.require_durability)
        check_duration("store_timeout", self.store_timeout)
        if self.redact is not None:
            check_callable("redact", self.redact)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """How the process of an `App` executes stored runs, and how it stops.

    Raises:
        DefinitionError: a field has a wrong type or value.
    """

    #: How many runs the worker executes at once. Runs that callers of `run` wait for are not counted.
    concurrency: int = 16
    #: Take this many runs in all; `serve` returns when they have ended or wait. `None`: no limit.
    max_runs: int | None = None
    #: Take queued and interrupted runs while the App is open. Without it the App executes only what `run`, `resume`
    #: and `recover` ask for.
    take_runs: bool = True
    #: How long a shutdown waits for runs to reach their next step boundary. An unresponsive store adds some seconds.
    shutdown_timeout: timedelta = timedelta(seconds=30)
    #: Shut down on SIGTERM and SIGINT, unless the host handles them. A second signal ends the process.
    handle_signals: bool = True
    #: Exceptions by which the host's own code announces a shutdown. A run that a tool or the model ends with one, as
    #: the error itself, its cause, or within an exception group, stays resumable.
    shutdown_exceptions: tuple[type[BaseException], ...] = ()
    #: By agent or key, for all workers of the store. Written to the store when the App opens. A limit that an operator
    #: has set there stays.
    concurrency_limits: Iterable[ConcurrencyLimit] = ()

    def __post_init__(self) -> None:
        check_count("concurrency", self.concurrency)
        if self.max_runs is not None:
            check_count("max_runs", self.max_runs)
        check_flag("take_runs", self.take_runs)
        check_duration("shutdown_timeout", self.shutdown_timeout)
        check_flag("handle_signals", self.handle_signals)
        _check_exceptions("shutdown_exceptions", self.shutdown_exceptions)
        check_type("concurrency_limits", self.concurrency_limits, Iterable, "a list of ConcurrencyLimit")
        limits = tuple(self.concurrency_limits)
        for limit in limits:
            check_type("concurrency_limits", limit, ConcurrencyLimit)
        object.__setattr__(self, "concurrency_limits", limits)


def _check_exceptions(name: str, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(kind, type) for kind in value):
        raise DefinitionError(f"{name} is {value!r:.80}: give a tuple of exception classes")
    for kind in value:
        if not issubclass(kind, BaseException):
            raise DefinitionError(f"{name} contains {kind.__name__}, which is not an exception class")
