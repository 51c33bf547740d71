"""Results side by side, with differences, and the pick of a person."""

import difflib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Unpack

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.core.errors import DefinitionError
from holdfast.fanout.cells import make_cell_run_id
from holdfast.fanout.responses import ModelResponse, is_fanout, read_responses
from holdfast.fanout.workspace import is_risky
from holdfast.runtime.operations.verdicts import PICK, Verdict, read_verdict, record_verdict
from holdfast.runtime.reading.formatting import format_value
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.runtime.reading.run_views import RunQuery
from holdfast.web.auth import Principal, find_visible, list_visible
from holdfast.web.ui.run_view.actions import read_form, redirect
from holdfast.web.ui.site import Site, get_principal

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


class ResultComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Several answers to one prompt."""

    #: The run whose results these are: the fan-out, the run that was forked, or the parent.
    root: RunRecord
    prompt: str
    columns: Sequence[Column]
    #: What a person has picked.
    pick: Verdict | None = None

    def find(self, name: str) -> Column | None:
        """Return the column of this name."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def risky_paths(self) -> list[str]:
        """The proposed files that programs may execute by themselves: a person reads them before they are used."""
        return sorted({path for column in self.columns for path in column.files if is_risky(path)})

    def list_files(self, base: Column | None) -> dict[str, list[FileView]]:
        """Return by path what each result proposes: whole, or as a difference to `base`."""
        paths = sorted({path for column in self.columns for path in column.files})
        return {path: [_view_file(column, path, base) for column in self.columns] for path in paths}


async def read_comparison(store: RunStore, app: App, record: RunRecord, principal: Principal) -> ResultComparison:
    """Read the results around a run that exist for the principal."""
    if is_fanout(record):
        root, prompt, columns = record, (await app.get(record.run_id)).prompt, await _read_fanout(store, record)
    else:
        root, prompt, columns = await _read_runs(store, app, record, principal)
    return ResultComparison(
        root=root, prompt=prompt, columns=columns, pick=await read_verdict(store, root.run_id, PICK)
    )


async def _read_runs(
    store: RunStore, app: App, record: RunRecord, principal: Principal
) -> tuple[RunRecord, str, Sequence[Column]]:
    """Read a run and its forks, or the children of a run: the run that they belong to, the prompt, the results."""
    origin = await _get_visible(store, summarize_run(record).forked_from, principal)
    root = origin or record
    runs = [root, *await _list_oldest_first(store, principal, forked_from=root.run_id)]
    if len(runs) < _MIN_RUNS:
        root, runs = record, await _list_oldest_first(store, principal, parent=record.run_id)
    columns = [await _make_column(app, each) for each in runs[:_MAX_COLUMNS]]
    return root, (await app.get(root.run_id)).prompt, columns


async def _read_fanout(store: RunStore, record: RunRecord) -> Sequence[Column]:
    columns: list[Column] = []
    for response in await read_responses(store, record.run_id):
        run_id = make_cell_run_id(record.run_id, response.model_id)
        columns.append(_make_cell(response, run_id if await _exists(store, run_id) else None))
    return columns


def _make_cell(response: ModelResponse, run_id: str | None) -> Column:
    return Column(
        name=response.model_id,
        run_id=run_id,
        status="done" if response.ok else response.status,
        text=response.text,
        error=response.error,
        tokens=response.input_tokens + response.output_tokens,
        cost_usd=response.cost_usd,
        took=timedelta(milliseconds=response.latency_ms),
        files={write.path: None if write.delete else write.content for write in response.proposed_writes},
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


async def _exists(store: RunStore, run_id: str) -> bool:
    try:
        await get_record(store, run_id)
    except RunNotFound:
        return False
    return True


async def _get_visible(store: RunStore, run_id: str | None, principal: Principal) -> RunRecord | None:
    if run_id is None:
        return None
    try:
        return await find_visible(store, principal, run_id)
    except RunNotFound:
        return None


async def _list_oldest_first(store: RunStore, principal: Principal, **query: Unpack[RunQuery]) -> list[RunRecord]:
    page = await list_visible(store, principal, limit=4 * _MAX_COLUMNS, **query)
    return list(page.records[::-1])


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


async def show_comparison(site: Site, request: Request) -> Response:
    """Show the results around a run. `base` in the URL names the one that the others are compared with."""
    record = await site.get_record(request)
    principal = get_principal(request)
    comparison = await read_comparison(site.store, site.app, record, principal)
    picked = comparison.find(comparison.pick.value) if comparison.pick is not None else None
    name = request.query_params.get("base", "")
    base = _find_column(comparison, name) if name else picked
    return site.render(
        request,
        "compare.html",
        run=summarize_run(record),
        comparison=comparison,
        picked=picked,
        base_column=base,
        files=comparison.list_files(base),
        can_pick="answer" in principal.scopes,
    )


async def pick(site: Site, request: Request) -> Response:
    """Record which result the reader picks; none, if the form names none."""
    record = await site.get_record(request)
    name = (await read_form(request)).get("result", "")
    principal = get_principal(request)
    comparison = await read_comparison(site.store, site.app, record, principal)
    if name:
        _find_column(comparison, name)
    await record_verdict(site.store, comparison.root.run_id, PICK, name, by=principal.caller_id or "local")
    return redirect(request, f"/runs/{record.run_id}/compare", "picked")


def _find_column(comparison: ResultComparison, name: str) -> Column:
    column = comparison.find(name)
    if column is None:
        raise DefinitionError(f"there is no result {name!r:.80}: go back to the comparison")
    return column
