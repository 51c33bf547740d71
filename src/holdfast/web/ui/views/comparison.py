"""Results side by side: of the models of a fan-out, of a run and its forks, or of the children of a run."""

import difflib
from collections.abc import Iterator, Sequence
from datetime import timedelta

import msgspec

from holdfast.app import App
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RunFilter, RunRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.fanout.cells import make_cell_run_id
from holdfast.fanout.snapshot import Snapshot
from holdfast.fanout.storage import AGENT_NAME, read_stored_checkpoint
from holdfast.runtime.picks import Pick, read_pick
from holdfast.web.auth import Principal
from holdfast.web.ui.views.formatting import format_value

#: Runs that are shown side by side.
_MAX_COLUMNS = 8
_MAX_DIFF_LINES = 400
_MIN_RUNS = 2


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One result."""

    name: str
    #: The run, if it is in the store.
    run_id: str | None
    status: str
    text: str = ""
    error: str = ""
    tokens: int = 0
    cost_usd: float = 0.0
    took: timedelta = timedelta(0)
    #: The content of each proposed file; `None` for a file that is to be deleted.
    files: dict[str, str | None] = {}


class Line(msgspec.Struct, frozen=True):
    """A line of a diff. Its kind is `added`, `removed`, `place` or empty."""

    kind: str
    text: str


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    """A file as one result has it."""

    name: str
    #: Such as "the same"; empty if there are lines.
    note: str = ""
    lines: Sequence[Line] = ()


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Several answers to one prompt."""

    #: The run whose results these are: the fan-out, the run that was forked, or the parent.
    root: RunRecord
    prompt: str
    columns: Sequence[Column]
    #: What a person has picked.
    pick: Pick | None = None

    def find(self, name: str) -> Column | None:
        """Return the column of this name."""
        return next((column for column in self.columns if column.name == name), None)

    def list_files(self, base: Column | None) -> dict[str, list[FileView]]:
        """Return by path what each result proposes: whole, or as a difference to `base`."""
        paths = sorted({path for column in self.columns for path in column.files})
        return {path: [_view_file(column, path, base) for column in self.columns] for path in paths}


def can_compare(record: RunRecord, forks: int, children: int) -> bool:
    """Whether there is more than one result to show."""
    return record.agent_name == AGENT_NAME or forks > 0 or "forked_from" in record.labels or children >= _MIN_RUNS


async def read_comparison(store: CheckpointStore, app: App, record: RunRecord, principal: Principal) -> Comparison:
    """Read the results around a run that exist for the principal."""
    if record.agent_name == AGENT_NAME:
        root, prompt, columns = record, *await _read_fanout(store, record)
    else:
        root, prompt, columns = await _read_runs(store, app, record, principal)
    return Comparison(root=root, prompt=prompt, columns=columns, pick=await read_pick(store, root.run_id))


async def _read_runs(
    store: CheckpointStore, app: App, record: RunRecord, principal: Principal
) -> tuple[RunRecord, str, Sequence[Column]]:
    """Read a run and its forks, or the children of a run: the run that they belong to, the prompt, the results."""
    origin = await _get_visible(store, record.labels.get("forked_from"), principal)
    root = origin or record
    runs = [root, *await _list_visible(store, RunFilter(labels={"forked_from": root.run_id}), principal)]
    if len(runs) < _MIN_RUNS:
        root, runs = record, await _list_visible(store, RunFilter(parent_run_id=record.run_id), principal)
    columns = [await _make_column(app, each) for each in runs[:_MAX_COLUMNS]]
    return root, (await app.get(root.run_id)).prompt, columns


async def _read_fanout(store: CheckpointStore, record: RunRecord) -> tuple[str, Sequence[Column]]:
    checkpoint = read_stored_checkpoint(await store.load(record.run_id))
    columns: list[Column] = []
    for snapshot in checkpoint.snapshots:
        run_id = make_cell_run_id(snapshot.model_id, checkpoint.fanout_id)
        columns.append(_make_cell(snapshot, run_id if await _exists(store, run_id) else None))
    return checkpoint.prompt, columns


def _make_cell(snapshot: Snapshot, run_id: str | None) -> Column:
    statuses = {"completed": "done", "failed": "failed", "interrupted": "interrupted"}
    return Column(
        name=snapshot.model_id,
        run_id=run_id,
        status=statuses[snapshot.status],
        text=snapshot.text,
        error=snapshot.error or "",
        tokens=snapshot.input_tokens + snapshot.output_tokens,
        cost_usd=snapshot.cost_usd,
        took=timedelta(milliseconds=snapshot.latency_ms),
        files={write.path: None if write.delete else write.content for write in snapshot.proposed_writes},
    )


async def _make_column(app: App, record: RunRecord) -> Column:
    run = await app.get(record.run_id)
    return Column(
        name=run.run_id,
        run_id=run.run_id,
        status=run.status,
        text=format_value(run.output) if run.output is not None else "",
        error=run.reason if run.status in ("failed", "parked") else "",
        tokens=run.usage.total_tokens,
        cost_usd=run.usage.cost_usd,
        took=run.elapsed,
    )


async def _exists(store: CheckpointStore, run_id: str) -> bool:
    try:
        await store.get_record(run_id)
    except RunNotFound:
        return False
    return True


async def _get_visible(store: CheckpointStore, run_id: str | None, principal: Principal) -> RunRecord | None:
    if run_id is None:
        return None
    try:
        record = await store.get_record(run_id)
    except RunNotFound:
        return None
    return record if principal.can_see(record.run_id, record.caller_id) else None


async def _list_visible(store: CheckpointStore, filter: RunFilter, principal: Principal) -> list[RunRecord]:
    page = await store.list_page(filter, limit=4 * _MAX_COLUMNS)
    return [record for record in page.records[::-1] if principal.can_see(record.run_id, record.caller_id)]


def _view_file(column: Column, path: str, base: Column | None) -> FileView:
    if path not in column.files:
        return FileView(name=column.name, note="not changed")
    content = column.files[path]
    if content is None:
        return FileView(name=column.name, note="deleted")
    other = base.files.get(path) if base is not None and base is not column else None
    if other is None:
        return FileView(name=column.name, lines=[Line("", line) for line in content.splitlines()[:_MAX_DIFF_LINES]])
    if other == content:
        return FileView(name=column.name, note="the same")
    return FileView(name=column.name, lines=list(_diff(other, content))[:_MAX_DIFF_LINES])


def _diff(before: str, after: str) -> Iterator[Line]:
    kinds = {"+": "added", "-": "removed", "@": "place"}
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    for number, line in enumerate(lines):
        if number >= 2:  # the first two name the files
            yield Line(kinds.get(line[0], ""), line)
