"""Picks: which of several results a person has chosen.

A run that has ended cannot be changed, and takes no mail. So each pick is a small run of its own, done from its
beginning, and the newest one counts. Listings leave picks out, unless they ask for their agent.
"""

from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.checkpoint.codec import Outcome, decode
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.record import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.core.run.info import RunInfo, new_run_id
from holdfast.runtime.finished_runs import store_finished_run

#: No agent has this name.
PICK_AGENT = "holdfast/pick"
#: The label that names the run whose results were compared.
_LABEL = "pick_of"
#: How long a pick among results that are not complete is kept.
_RETENTION = timedelta(days=30)


class _Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The output of a pick's run."""

    result: str
    by: str


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """The result that a person has chosen."""

    #: The run whose results were compared: a fan-out, a run with forks, or the parent of several runs.
    run_id: str
    #: The id of a model of the fan-out, or the id of a run. Empty: the person chose none after all.
    result: str
    #: Who has chosen, and when.
    by: str
    at: datetime


async def record_pick(store: RunStore, compared: RunRecord, result: str, *, by: str) -> None:
    """Record that `by` chose `result`, durably. It is kept as long as the compared run."""
    retention = _RETENTION
    if compared.expires_at is not None:
        retention = max(compared.expires_at - datetime.now(UTC), timedelta(0))
    info = RunInfo(
        run_id=f"pick-{new_run_id()}",
        agent_name=PICK_AGENT,
        caller_id=by,
        prompt=f"Pick {result or 'none'} of {compared.run_id}",
        labels={_LABEL: compared.run_id},
    )
    outcome = Outcome(output=msgspec.to_builtins(_Choice(result=result, by=by)))
    await store_finished_run(store, info, outcome, retention)


async def read_pick(store: RunStore, run_id: str) -> Pick | None:
    """Return the newest pick among the results around a run; `None` if there is none."""
    done = frozenset({RunStatus.DONE})
    filter = RunFilter(agent_name=PICK_AGENT, statuses=done, labels={_LABEL: run_id})
    page = await store.list_page(filter, limit=1)
    for record in page.records:
        stored = await store.load(record.run_id)
        [body] = [entry.body for entry in stored.entries if entry.kind is EntryKind.OUTCOME]
        choice = msgspec.convert(decode(body, Outcome).output, _Choice)
        if choice.result:
            return Pick(run_id=run_id, result=choice.result, by=choice.by, at=record.created_at)
    return None
