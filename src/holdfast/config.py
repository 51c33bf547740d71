"""Settings of an `App`: how runs are saved, and how its process executes stored runs."""

from dataclasses import dataclass
from datetime import timedelta

from holdfast.core.redaction import Redact
from holdfast.core.validation import check_callable, check_count, check_duration, check_flag


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
    #: How long a failed run stays in the store, to be resumed by hand. `None`: it is removed at once.
    failed_retention: timedelta | None = None
    #: How long the result of a submitted run stays readable.
    result_retention: timedelta = timedelta(days=7)
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
        if self.failed_retention is not None:
            check_duration("failed_retention", self.failed_retention)
        check_duration("result_retention", self.result_retention)
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

    #: How many recovered or queued runs are executed at once.
    concurrency: int = 16
    #: Resume interrupted runs in the background while the App is open.
    recover_on_start: bool = True
    #: How long a shutdown waits for runs to reach their next step boundary. An unresponsive store adds some seconds.
    shutdown_timeout: timedelta = timedelta(seconds=30)
    #: Shut down on SIGTERM and SIGINT, unless the host handles them. A second signal ends the process.
    handle_signals: bool = True

    def __post_init__(self) -> None:
        check_count("concurrency", self.concurrency)
        check_flag("recover_on_start", self.recover_on_start)
        check_duration("shutdown_timeout", self.shutdown_timeout)
        check_flag("handle_signals", self.handle_signals)
