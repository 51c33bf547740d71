"""The runs around a run: its parent, children, forks and origin."""

import asyncio
from collections.abc import Sequence

import msgspec

from holdfast.checkpoint.record import RunFilter, RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.reading import RunSummary, summarize_run
from holdfast.web.auth import Principal

_LIMIT = 50


class Related(msgspec.Struct, frozen=True, kw_only=True):
    """The nearest runs."""

    parent: str | None
    #: The run that this one is a fork of.
    origin: str | None
    children: Sequence[RunSummary]
    forks: Sequence[RunSummary]


async def read_related(store: CheckpointStore, record: RunRecord, principal: Principal) -> Related:
    """Read the runs around a run that exist for the principal."""

    async def list_runs(filter: RunFilter) -> list[RunSummary]:
        page = await store.list_page(filter, limit=_LIMIT)
        return [summarize_run(each) for each in page.records if principal.can_see(each.run_id, each.caller_id)]

    children, forks = await asyncio.gather(
        list_runs(RunFilter(parent_run_id=record.run_id)), list_runs(RunFilter(labels={"forked_from": record.run_id}))
    )
    return Related(
        parent=record.parent_run_id, origin=record.labels.get("forked_from"), children=children[::-1], forks=forks[::-1]
    )
