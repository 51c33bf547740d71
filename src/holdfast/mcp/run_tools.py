"""The tools. Their docstrings and parameters are what a client reads."""

import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, Unpack

import msgspec
from pydantic import Field

from holdfast.app import App
from holdfast.checkpoint.record import RunStatus
from holdfast.core.errors import DefinitionError
from holdfast.core.run.waiting import Answer, Approve, Deny, Value
from holdfast.runtime.reading.query_fields import QUERY_FIELDS, FieldKind
from holdfast.runtime.reading.run_views import RunDetails, RunList, RunQuery, read_details
from holdfast.runtime.reading.transcript import CallRecord, Transcript, TranscriptItem, get_loop_name

#: The most runs or calls in one result.
MAX_PAGE = 50
#: The most items of a transcript in one result.
MAX_ITEMS = 200

RunId = Annotated[str, Field(description="The id of the run.")]


class ShownRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run and the end of its transcript."""

    run: RunDetails
    #: Oldest first.
    transcript: list[TranscriptItem]
    #: Earlier items that were left out.
    earlier_items: int


class PendingPage(msgspec.Struct, frozen=True, kw_only=True):
    """Calls that wait for a person, oldest first."""

    calls: tuple[CallRecord, ...]
    #: Later calls that were left out.
    more: int


#: How a client gives each kind of condition.
_QUERY_TYPES: dict[FieldKind, Any] = {
    "text": str | None,
    "texts": RunStatus | list[RunStatus] | None,
    "pairs": dict[str, str] | None,
    "time": datetime | None,
}


def describe_query(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a tool that takes `**query`, with a parameter for each condition of a listing."""
    own = [each for each in inspect.signature(function).parameters.values() if each.kind is not each.VAR_KEYWORD]
    conditions = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[_QUERY_TYPES[field.kind], Field(description=field.help)],
        )
        for field in QUERY_FIELDS
    ]
    return inspect.Signature([*own, *conditions])


class RunTools:
    """The operations on the runs of an App that a client may call."""

    def __init__(self, app: App) -> None:
        """Offer the runs of `app`.

        Raises:
            DefinitionError: it has no store.
        """
        if app.store is None:
            raise DefinitionError("this App has no store, so it has no runs to show: give it one")
        self._app, self._store = app, app.store

    async def list_runs(
        self,
        cursor: Annotated[str | None, Field(description="The cursor of the page before.")] = None,
        limit: Annotated[int, Field(ge=1, le=MAX_PAGE, description="The most runs of a page.")] = 20,
        **query: Unpack[RunQuery],
    ) -> RunList:
        """List runs, newest first: status and a description of it, agent, prompt, steps, usage, owner."""
        return await self._app.list(cursor=cursor, limit=limit, **query)

    async def show_run(
        self,
        run_id: RunId,
        items: Annotated[int, Field(ge=0, le=MAX_ITEMS, description="The most items of the transcript.")] = 20,
    ) -> ShownRun:
        """Show one run: its state, its open calls, its output or error, and the last items of its transcript."""
        stored = await self._store.load(run_id)
        transcript = Transcript(get_loop_name(stored.record)).read(stored.entries)
        shown = transcript[len(transcript) - items :] if items < len(transcript) else transcript
        return ShownRun(run=read_details(stored), transcript=shown, earlier_items=len(transcript) - len(shown))

    async def list_pending(
        self,
        agent: Annotated[str | None, Field(description="Only calls of this agent's runs.")] = None,
        tool: Annotated[str | None, Field(description="Only calls of this tool.")] = None,
    ) -> PendingPage:
        """List the calls that wait for a person: approvals and questions, with their arguments and digest."""
        calls = await self._app.pending(agent=agent, tool=tool)
        shown = tuple(map(CallRecord.from_wait, calls[:MAX_PAGE]))
        return PendingPage(calls=shown, more=len(calls) - len(shown))

    async def answer_call(
        self,
        run_id: RunId,
        call_id: Annotated[str, Field(description="The id of the call, from list_pending.")],
        digest: Annotated[str, Field(description="The digest of the call, from list_pending.")],
        decision: Literal["approve", "deny", "value"],
        value: Annotated[Any, Field(description="With decision 'value': the result of the call.")] = None,
        reason: Annotated[str, Field(description="With 'deny': the model of the run reads it.")] = "",
    ) -> dict[str, str]:
        """Answer a call that waits for a person: approve it, deny it, or give its result. Cannot be undone."""
        answers: dict[str, Answer] = {
            "approve": Approve(comment=reason),
            "deny": Deny(reason=reason),
            "value": Value(value),
        }
        await self._app.answer(run_id, call_id, answers[decision], via="mcp", digest=digest)
        return {"run_id": run_id, "call_id": call_id, "decision": decision}

    async def cancel_run(self, run_id: RunId) -> dict[str, str]:
        """Cancel a run and its child runs, or ask the worker that executes it to. Cannot be undone."""
        await self._app.cancel(run_id)
        return {"run_id": run_id}

    async def fork_run(
        self, run_id: RunId, at_step: Annotated[int, Field(ge=1, description="The step after which it starts.")]
    ) -> dict[str, str]:
        """Queue a new run that continues this one from a finished step. Returns the id of the new run."""
        return {"run_id": await self._app.fork(run_id, at_step)}
