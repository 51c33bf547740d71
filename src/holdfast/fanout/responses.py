"""The response of one model: partial, final, as the snapshot of a checkpoint file, and as its stored run has it."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import msgspec

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.fanout.cells import AGENT_PREFIX, make_cell_run_id
from holdfast.fanout.errors import WorkspaceChanged
from holdfast.fanout.overlay import Overlay
from holdfast.fanout.workspace import Workspace, WriteSnapshot
from holdfast.runtime.reading.run_views import RunDetails, read_details
from holdfast.runtime.reading.transcript import CallRecord, Transcript, get_loop_name

#: The tool of the fan-out's run that asks one cell.
ASK_TOOL = "ask_model"

#: `interrupted`: the model continues when the fan-out is resumed.
ResponseStatus = Literal["completed", "failed", "interrupted"]

# A snapshot's JSON leaves out the fields that are empty, except those with a factory: `omit_defaults` keeps these.


class ResponseData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields that partial responses, responses and snapshots share."""

    #: The cell's id: the model's id, with the variant's name if there are variants.
    model_id: str
    text: str = ""
    #: Execution time of the model's run, over all attempts.
    latency_ms: int = msgspec.field(default_factory=int)
    input_tokens: int = msgspec.field(default_factory=int)
    output_tokens: int = msgspec.field(default_factory=int)
    reasoning_tokens: int = 0
    cost_usd: float = msgspec.field(default_factory=float)
    proposed_writes: tuple[WriteSnapshot, ...] = ()
    #: By the tool's name.
    tool_calls: dict[str, int] = {}
    #: Why the model failed or was interrupted; empty if there was no error.
    error: str = ""


class PartialResponse(ResponseData, frozen=True, kw_only=True):
    """A model's response in progress, as of its last finished step."""

    #: `ResponseSnapshot.from_partial` names the model.
    model_id: str = ""


class ModelResponse(ResponseData, frozen=True, kw_only=True):
    """The final response of a model, or its state when the fan-out was stopped."""

    #: The model has not finished: resume the fan-out.
    interrupted: bool = msgspec.field(default_factory=bool)

    @property
    def ok(self) -> bool:
        return not self.error and not self.interrupted

    @property
    def status(self) -> ResponseStatus:
        if self.interrupted:
            return "interrupted"
        return "failed" if self.error else "completed"


class ResponseSnapshot(ResponseData, frozen=True, kw_only=True):
    """One model in a checkpoint file."""

    interrupted: bool = msgspec.field(default_factory=bool)
    completed: bool = msgspec.field(default_factory=bool)

    @classmethod
    def from_response(cls, response: ModelResponse) -> "ResponseSnapshot":
        return cls(**_field_values(response), completed=response.ok)

    @classmethod
    def from_partial(cls, model_id: str, partial: PartialResponse) -> "ResponseSnapshot":
        """Return an interrupted snapshot: a process that loads it has to resume the model."""
        return cls(**{**_field_values(partial), "model_id": model_id}, interrupted=True)

    def to_response(self) -> ModelResponse:
        return ModelResponse(**{name: value for name, value in _field_values(self).items() if name != "completed"})


def _field_values(struct: msgspec.Struct) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


# -- responses of stored runs -----------------------------------------------------------------------------------------


class CellRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a cell's call, as the fan-out's run records it."""

    #: Kept here, because a later change of the workspace would change what the model's edits mean.
    proposed_writes: tuple[WriteSnapshot, ...] = ()
    #: The response of a checkpoint file: the model was not asked.
    given: ResponseSnapshot | None = None
    #: The model had failed. If it was resumed since, its run has newer calls than `proposed_writes`.
    failed: bool = False


class StoredCell(msgspec.Struct, frozen=True, kw_only=True):
    """A cell, read from its run."""

    #: Without proposed writes.
    response: ModelResponse
    #: The calls that have a result.
    calls: Sequence[CallRecord]


def is_fanout(record: RunRecord) -> bool:
    """Return whether the run is a fan-out. Its cells are not."""
    return record.agent_name == f"{AGENT_PREFIX}{record.run_id}"


async def read_responses(store: RunStore, run_id: str, workspace: Workspace | None = None) -> list[ModelResponse]:
    """Return the responses of a fan-out, in the order of its cells. Changes nothing.

    Args:
        store: an open store.
        workspace: shows the proposed writes of models that have not finished.

    Raises:
        RunNotFound: there is no such run, or its retention has passed.
    """
    return [await _read_response(store, run_id, call, workspace) for call in await _read_calls(store, run_id)]


async def list_unfinished(store: RunStore, run_id: str, *, failed: bool) -> frozenset[str]:
    """Return the cells whose calls have ended and whose runs have not: an earlier retry was interrupted.

    Args:
        failed: return the cells that have failed, too.
    """
    try:
        asked = await _read_calls(store, run_id)
    except RunNotFound:
        return frozenset()
    found: set[str] = set()
    for call in asked:
        model_id = call.arguments["cell"]
        cell = await read_cell(store, make_cell_run_id(run_id, model_id), model_id)
        status = cell.response.status if cell is not None else None
        if (status == "interrupted" and call.state in ("done", "error")) or (status == "failed" and failed):
            found.add(model_id)
    return frozenset(found)


async def _read_calls(store: RunStore, run_id: str) -> list[CallRecord]:
    stored = await store.load(run_id)
    transcript = Transcript(get_loop_name(stored.record))
    transcript.read(stored.entries)
    transcript.close(stored.record)
    return [call for call in transcript.calls if call.tool == ASK_TOOL]


async def read_cell(store: RunStore, run_id: str, model_id: str) -> StoredCell | None:
    """Return a cell by the id of its run; `None` if it has not started."""
    try:
        stored = await store.load(run_id)
    except RunNotFound:
        return None
    transcript = Transcript(get_loop_name(stored.record))
    items = transcript.read(stored.entries)
    calls = [call for call in transcript.calls if call.state in ("done", "error")]
    run = read_details(stored)
    texts = [item.text for item in items if item.kind == "reply" and item.text]
    response = ModelResponse(
        model_id=model_id,
        text=_format_output(run.output) if run.status is RunStatus.DONE else texts[-1] if texts else "",
        latency_ms=to_milliseconds(run.elapsed),
        input_tokens=run.usage.input_tokens,
        output_tokens=run.usage.output_tokens,
        reasoning_tokens=run.usage.reasoning_tokens,
        cost_usd=run.usage.cost_usd,
        tool_calls=dict(Counter(call.tool for call in calls)),
        error=_find_error(run),
        interrupted=not stored.record.is_terminal,
    )
    return StoredCell(response=response, calls=calls)


async def _read_response(store: RunStore, run_id: str, call: CallRecord, workspace: Workspace | None) -> ModelResponse:
    model_id = call.arguments["cell"]
    recorded = msgspec.convert(call.result, CellRecord) if call.state == "done" else None
    if recorded is not None and recorded.given is not None:
        return recorded.given.to_response()
    cell = await read_cell(store, make_cell_run_id(run_id, model_id), model_id)
    response = cell.response if cell is not None else ModelResponse(model_id=model_id, interrupted=True)
    if call.state == "error" and response.interrupted:  # such as WorkspaceChanged: its run cannot continue
        return msgspec.structs.replace(response, error=str(call.result), interrupted=False)
    if call.state == "waiting" and not response.error:
        response = msgspec.structs.replace(response, error=str(call.metadata or call.reason))
    if recorded is not None and recorded.proposed_writes and not (recorded.failed and response.ok):
        return msgspec.structs.replace(response, proposed_writes=recorded.proposed_writes)
    return _add_proposed_writes(response, cell.calls if cell is not None else (), workspace)


def _add_proposed_writes(
    response: ModelResponse, calls: Sequence[CallRecord], workspace: Workspace | None
) -> ModelResponse:
    if workspace is None or not calls:
        return response
    overlay = Overlay(workspace)
    try:
        overlay.replay(calls)
    except WorkspaceChanged as exc:
        return msgspec.structs.replace(response, error=response.error or str(exc))
    return msgspec.structs.replace(response, proposed_writes=overlay.writes)


def _find_error(run: RunDetails) -> str:
    if run.status is RunStatus.FAILED:
        return run.error or "failed"
    if run.status is RunStatus.CANCELLED:
        return run.reason or "cancelled"
    return run.reason if run.status in (RunStatus.PARKED, RunStatus.WAITING) else ""


def _format_output(output: Any) -> str:
    """Return text as it is, other values as JSON."""
    return output if isinstance(output, str) else msgspec.json.encode(output).decode()


def to_milliseconds(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))
