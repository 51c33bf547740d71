"""Reads stored runs: one with its pending calls, or a page of many. Needs no agent's code and changes nothing."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, TypedDict, Unpack

import msgspec

from holdfast.checkpoint.codec import Outcome, decode
from holdfast.checkpoint.errors import RecordDecodeError
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.progress import AttemptRecord, Progress
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus, StoredRun
from holdfast.checkpoint.store import RunStore
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import FORK_LABEL
from holdfast.core.run.run_events import ItemProgress
from holdfast.core.run.status import AttemptEnd
from holdfast.core.validation import to_utc
from holdfast.runtime.reading.run_summary import RunSummary, summarize_run
from holdfast.runtime.reading.transcript import CallRecord, Transcript, get_loop_name


class RunDetails(RunSummary, frozen=True, kw_only=True):
    """One run with what its journal says about its current state."""

    #: Calls without a result, with their arguments. `state` says what each waits for.
    pending_calls: tuple[CallRecord, ...]
    #: Calls that waited for a person or a result and no longer do. `decision` says who answered what, and when.
    decided_calls: tuple[CallRecord, ...] = ()
    #: Calls in the journal whose tool failed: the model has read the error.
    failed_calls: int = 0
    #: How far each `map_items` of a workflow is, the latest of each function.
    progress: tuple[ItemProgress, ...] = ()
    #: Which workers executed the run, oldest first: the newest attempts. Empty if a version that did not record them
    #: executed it.
    attempts: tuple[AttemptRecord, ...] = ()
    #: The output of a run that is done, as plain data. `App.result` returns it with its type.
    output: Any = None
    #: Why a run failed.
    error: str | None = None


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs, newest first."""

    runs: tuple[RunSummary, ...]
    #: Pass this to `list` for the next page. `None`: there are no further runs.
    cursor: str | None = None


class RunRecords(msgspec.Struct, frozen=True, kw_only=True):
    """A page of records, newest first."""

    records: tuple[RunRecord, ...]
    cursor: str | None = None


class RunQuery(TypedDict, total=False):
    """Which runs a listing returns. All conditions have to hold.

    The one list of conditions: `query_fields` makes command line options, HTTP parameters and MCP tools of it.
    """

    status: Annotated[RunStatus | str | Iterable[RunStatus | str] | None, "Only runs with this status."]
    agent: Annotated[str | None, "Only runs of this agent."]
    caller: Annotated[str | None, "Only runs of this caller."]
    parent: Annotated[str | None, "Only child runs of this run."]
    forked_from: Annotated[str | None, "Only forks of this run."]
    labels: Annotated[Mapping[str, str] | None, "Only runs with this label."]
    since: Annotated[datetime | None, "Only runs created since then."]
    until: Annotated[datetime | None, "Only runs created before then."]


#: Labels of a filter, beside that of conversations: each is a join.
_MAX_LABELS = 8
#: Characters of each text of a filter, and of a cursor.
_MAX_TEXT = 1_000

_STATUSES = {status.value: status for status in RunStatus if status is not RunStatus.REMOVED}


async def get_run(store: RunStore, run_id: str) -> RunDetails:
    """Return the run's current state.

    Raises:
        RunNotFound: there is no such run, or its retention has passed.
        RunDamaged: its journal is corrupt.
    """
    return read_details(await store.load(run_id))


async def list_runs(store: RunStore, *, limit: int, cursor: str | None = None, **query: Unpack[RunQuery]) -> RunList:
    """Return a page of runs, newest first. Never reads journals. Raises as `list_records`."""
    page = await list_records(store, limit=limit, cursor=cursor, **query)
    return RunList(runs=tuple(map(summarize_run, page.records)), cursor=page.cursor)


async def list_records(
    store: RunStore,
    *,
    limit: int,
    cursor: str | None = None,
    **query: Unpack[RunQuery],
) -> RunRecords:
    """Return a page of records, newest first. Never reads journals.

    Raises:
        DefinitionError: an argument has a wrong type or value.
        InvalidCursor: the cursor is not one that this store has returned.
    """
    run_filter, wanted = make_filter(**query)
    _check_text("cursor", cursor)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise DefinitionError(f"limit is {limit!r:.80}: give a number of runs, at least 1")
    found: list[RunRecord] = []
    while True:
        # Not more than fits: the cursor continues after the last record of the page.
        page = await store.list_page(run_filter, limit=limit - len(found), cursor=cursor)
        found += [record for record in page.records if wanted is None or record.current_status in wanted]
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            return RunRecords(records=tuple(found), cursor=cursor)


def make_filter(**query: Unpack[RunQuery]) -> tuple[RunFilter, frozenset[RunStatus] | None]:
    """Return the filter of stored runs for a query, and the statuses that it asks for.

    Raises:
        DefinitionError: an argument has a wrong type or value.
    """
    wanted = _parse_statuses(query.get("status"))
    origin = _check_text("forked_from", query.get("forked_from"))
    relation = {} if origin is None else {FORK_LABEL: origin}
    run_filter = RunFilter(
        statuses=_to_stored_statuses(wanted),
        agent_name=_check_text("agent", query.get("agent")),
        caller_id=_check_text("caller", query.get("caller")),
        parent_run_id=_check_text("parent", query.get("parent")),
        labels={**_check_labels(query.get("labels")), **relation},
        created_after=_check_time("since", query.get("since")),
        created_before=_check_time("until", query.get("until")),
    )
    return run_filter, wanted


def read_attempts(record: RunRecord) -> tuple[AttemptRecord, ...]:
    """Return the newest attempts of a run, oldest first. One that has neither ended nor works has died."""
    try:
        progress = decode(record.progress, Progress)
    except RecordDecodeError:  # only a newer holdfast can decode it
        return ()
    if record.status is RunStatus.QUEUED:
        return ()
    attempts = [each if each.end else msgspec.structs.replace(each, end=AttemptEnd.DIED) for each in progress.attempts]
    if record.status is not RunStatus.RUNNING or record.owner is None:
        return tuple(attempts)
    last = progress.attempts[-1] if attempts else None
    if last is None or last.end is not None or last.worker_id != record.owner:  # the current one has not saved yet
        number, at = (1 if last is None else last.number + 1), record.updated_at
        attempts.append(
            AttemptRecord(number=number, worker_id=record.owner, began_at=at, saved_at=at, end=AttemptEnd.DIED)
        )
    if record.owner_alive:
        attempts[-1] = msgspec.structs.replace(attempts[-1], end=None)
    return tuple(attempts)


def read_details(stored: StoredRun) -> RunDetails:
    """Summarize a run and read its pending calls and its outcome."""
    transcript = Transcript(get_loop_name(stored.record))
    transcript.read(stored.entries)
    transcript.close(stored.record)
    outcome = next(
        (decode(entry.body, Outcome) for entry in reversed(stored.entries) if entry.kind is EntryKind.OUTCOME),
        Outcome(),
    )
    status = stored.record.status
    return RunDetails(
        **msgspec.structs.asdict(summarize_run(stored.record)),
        pending_calls=tuple(transcript.unanswered),
        decided_calls=tuple(call for call in transcript.calls if call.decision is not None),
        failed_calls=sum(call.state == "error" for call in transcript.calls),
        progress=tuple(transcript.progress.values()),
        attempts=read_attempts(stored.record),
        output=outcome.output if status is RunStatus.DONE else None,
        error=outcome.error or stored.record.reason if status is RunStatus.FAILED else None,
    )


def _parse_statuses(given: RunStatus | str | Iterable[RunStatus | str] | None) -> frozenset[RunStatus] | None:
    if given is None:
        return None
    try:
        return frozenset(_STATUSES[each] for each in ([given] if isinstance(given, str) else given))
    except (KeyError, TypeError):
        raise DefinitionError(f"status is {given!r:.80}: use {', '.join(_STATUSES)}, or several of them") from None


def _to_stored_statuses(wanted: frozenset[RunStatus] | None) -> frozenset[RunStatus] | None:
    """Return the stored statuses among which the wanted ones are: a dead owner does not change what is stored."""
    if wanted is not None and RunStatus.INTERRUPTED in wanted:
        return wanted | {RunStatus.RUNNING}
    return wanted


def _check_text(name: str, value: str | None) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) > _MAX_TEXT):
        raise DefinitionError(f"{name} is {value!r:.80}: give text of at most {_MAX_TEXT} characters")
    return value


def _check_labels(labels: Mapping[str, str] | None) -> Mapping[str, str]:
    if labels is None:
        return {}
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise DefinitionError(f"labels is {labels!r:.80}: give a mapping of text to text")
    if len(labels.keys() - {"holdfast.type"}) > _MAX_LABELS:
        raise DefinitionError(f"the filter has {len(labels)} labels: give at most {_MAX_LABELS}")
    for name, value in labels.items():
        _check_text("the name of a label", name)
        _check_text(f"the label {name:.80}", value)
    return dict(labels)


def _check_time(name: str, value: datetime | None) -> datetime | None:
    return None if value is None else to_utc(name, value)
