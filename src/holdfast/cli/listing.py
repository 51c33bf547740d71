"""RunSummary: one stored run as `ls`, `show` and `export` print it."""

from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from holdfast.checkpoint.codec import Progress, RunMeta, decode
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.core.execution.attempts import RETRY_KEY


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run without its transcript. `--json` prints these fields."""

    run_id: str
    #: As `display_status` returns it.
    status: str
    agent: str
    caller: str
    parent: str | None
    created_at: datetime
    updated_at: datetime
    steps: int
    phases: int
    tokens: int
    cost_usd: float
    #: Size of the journal in bytes.
    size: int
    owner: str | None
    owner_alive: bool
    strikes: int
    #: Why the run is parked, failed or waiting.
    reason: str
    #: Workers do not claim the run before this time.
    not_before: datetime
    cancel_requested: bool
    #: Calls that were made again after a transient error, and the last such error.
    retries: int
    retry_error: str
    prompt: str
    labels: dict[str, str]


def display_status(record: RunRecord) -> str:
    """Return the run's status. A running run whose owner is dead is interrupted."""
    if record.status is RunStatus.RUNNING and not record.owner_alive:
        return RunStatus.INTERRUPTED.value
    return record.status.value


def summarize_run(record: RunRecord) -> RunSummary:
    """Summarize a record. Fields that only a newer holdfast can decode stay empty."""
    meta, progress = RunMeta(run_id=record.run_id, agent_name=record.agent_name), Progress()
    with suppress(RecordDecodeError):  # a listing continues; `doctor` reports the error
        meta, progress = decode(record.meta, RunMeta), decode(record.progress, Progress)
    retry = progress.annotations.get(RETRY_KEY, {})
    return RunSummary(
        run_id=record.run_id,
        status=display_status(record),
        agent=record.agent_name,
        caller=record.caller_id,
        parent=record.parent_run_id,
        created_at=record.created_at,
        updated_at=record.updated_at,
        steps=progress.steps,
        phases=progress.phases,
        tokens=progress.usage.total_tokens,
        cost_usd=progress.usage.cost_usd,
        size=record.size,
        owner=record.owner if record.status is RunStatus.RUNNING else None,
        owner_alive=record.owner_alive,
        strikes=record.strikes,
        reason=record.reason,
        not_before=record.not_before,
        cancel_requested=record.cancel_requested,
        retries=retry.get("count", 0),
        retry_error=retry.get("error", ""),
        prompt=meta.prompt,
        labels=meta.labels,
    )


def utc_now() -> datetime:
    return datetime.now(UTC)
