"""A stored run as listings show it."""

from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from holdfast.checkpoint.codec import Progress, RunMeta, decode
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.record import RunRecord, RunStatus


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run, without its transcript. This is what `--json` gives."""

    run_id: str
    #: As `display_status` says it.
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
    #: Bytes of the journal.
    size: int
    owner: str | None
    owner_alive: bool
    strikes: int
    #: Why it is parked, failed or waits.
    reason: str
    #: Recovery leaves it alone until then.
    not_before: datetime
    cancel_requested: bool
    prompt: str
    labels: dict[str, str]


def display_status(record: RunRecord) -> str:
    """The status a person thinks of: a run whose owner is dead is interrupted, whatever its owner last wrote."""
    if record.status is RunStatus.RUNNING and not record.owner_alive:
        return RunStatus.INTERRUPTED.value
    return record.status.value


def summarize_run(record: RunRecord) -> RunSummary:
    """`record` as it is listed. What a newer holdfast wrote is left out where it cannot be read."""
    meta, progress = RunMeta(run_id=record.run_id, agent_name=record.agent_name), Progress()
    with suppress(RecordDecodeError):  # `doctor` says so; a listing has to go on
        meta, progress = decode(record.meta, RunMeta), decode(record.progress, Progress)
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
        prompt=meta.prompt,
        labels=meta.labels,
    )


def utc_now() -> datetime:
    return datetime.now(UTC)
