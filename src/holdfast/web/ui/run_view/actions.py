"""Actions on a run: its forms, and the calls that wait for a person."""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import TERMINAL_STATUSES, RunRecord, RunStatus
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.core.errors import DefinitionError
from holdfast.core.run.waiting import PERSON_KINDS, Answer, Approve, Deny, Value, WaitingCall
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.mailing import MAX_MAIL_BYTES
from holdfast.runtime.reading.run_summary import RunSummary, summarize_run
from holdfast.runtime.reading.transcript import Transcript, get_loop_name
from holdfast.web.ui.site import Site, get_principal

_MAX_FORM_BYTES = 4 * MAX_MAIL_BYTES
#: A batch of a hundred calls in doubt has two for each.
_MAX_FIELDS = 250


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        DefinitionError: it is too large, or not one of the page.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise DefinitionError(f"the form has more than {_MAX_FORM_BYTES} bytes")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        raise DefinitionError("the form is not valid") from None
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


_log = logging.getLogger("holdfast.web")

#: A resume that is refused says so within this time; after it the run executes.
_REFUSAL_TIMEOUT = 0.5
_VIA = "web"


async def answer(site: Site, request: Request) -> Response:
    """Answer a call that waits."""
    record = await site.get_record(request)
    form = await read_form(request)
    decision, said = _read_answer(form)
    by = get_principal(request).caller_id or "local"
    await site.app.answer(
        record.run_id, form.get("call_id", ""), decision, by=by, via=_VIA, digest=form.get("digest", "")
    )
    return redirect(request, "/inbox" if form.get("back") == "inbox" else f"/runs/{record.run_id}", said)


def _read_answer(form: dict[str, str]) -> tuple[Answer, str]:
    if "option" in form:
        return Value(form["option"]), "answered"
    match form.get("decision"):
        case "approve":
            return Approve(), "approved"
        case "edit":
            return Approve(
                arguments=parse_json(form.get("arguments", ""), "the arguments are not a JSON object", dict[str, Any])
            ), "approved"
        case "deny":
            return Deny(reason=form.get("reason", "").strip()), "denied"
        case "value":
            return Value(_parse_value(form.get("value", ""))), "answered"
    raise DefinitionError("the form has no decision: approve, deny or answer")


def parse_json(text: str, problem: str, kind: Any = Any) -> Any:
    """Parse JSON in a form.

    Raises:
        DefinitionError: it is not JSON of this kind. The message begins with `problem`.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as exc:
        raise DefinitionError(f"{problem}: {exc}") from None


def _parse_value(text: str) -> Any:
    """Parse JSON. Other text is taken as it is."""
    try:
        return parse_json(text, "the value is not JSON")
    except DefinitionError:
        return text


async def cancel(site: Site, request: Request) -> Response:
    """Cancel a run."""
    record = await site.get_record(request)
    await site.app.cancel(record.run_id)
    stored = await get_record(site.store, record.run_id)
    return redirect(request, f"/runs/{record.run_id}", "cancelled" if stored.is_terminal else "cancelling")


async def unpark(site: Site, request: Request) -> Response:
    """Leave a parked run to the workers, with the results of calls in doubt that the form has."""
    record = await site.get_record(request)
    form = await read_form(request)
    given = {
        form.get(f"call-{name.removeprefix('result-')}", ""): _parse_value(value)
        for name, value in form.items()
        if name.startswith("result-") and value.strip()
    }
    await site.app.unpark(record.run_id, given)
    return redirect(request, f"/runs/{record.run_id}", "unparked")


async def resume(site: Site, request: Request) -> Response:
    """Resume a run in this process. The run does not depend on the request."""
    record = await site.get_record(request)
    site.app.agent(record.agent_name)
    task = asyncio.ensure_future(site.app.resume(record.run_id))
    done, _ = await asyncio.wait({task}, timeout=_REFUSAL_TIMEOUT)
    if not done:
        task.add_done_callback(_log_result)
    elif (error := task.exception()) is not None and (
        await get_record(site.store, record.run_id)
    ).token == record.token:
        raise error  # it was refused: no worker has claimed the run
    return redirect(request, f"/runs/{record.run_id}", "resumed")


def _log_result(task: asyncio.Future[Any]) -> None:
    """Take the error of a run: the store has it."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, HoldfastError):
        _log.info("a resumed run ended with %s", type(error).__name__)


async def send(site: Site, request: Request) -> Response:
    """Send a message to a run."""
    record = await site.get_record(request)
    form = await read_form(request)
    text = form.get("text", "").strip()
    if not text:
        raise DefinitionError("the message is empty: write some text")
    key = summarize_run(record).conversation
    if key:
        await site.app.conversation(record.agent_name, key).post(text)
    else:
        await site.app.send(record.run_id, text)
    return redirect(request, f"/runs/{record.run_id}", "sent")


def redirect(request: Request, path: str, said: str) -> Response:
    """Show a page, with what an action has said."""
    return RedirectResponse(f"{request.scope.get('root_path', '')}{path}?said={said}", status_code=303)


class BulkAction(msgspec.Struct, frozen=True, kw_only=True):
    """What can be done to many runs, and to which."""

    verb: str
    #: For the sentence that follows the number of runs.
    past: str
    statuses: frozenset[RunStatus]
    apply: Callable[[Site, str], Awaitable[None]]
    is_destructive: bool = False


BULK_ACTIONS = {
    "cancel": BulkAction(
        verb="Cancel",
        past="cancelled, or asked to stop",
        statuses=frozenset(RunStatus) - TERMINAL_STATUSES - {RunStatus.REMOVED},
        apply=lambda site, run_id: site.app.cancel(run_id),
        is_destructive=True,
    ),
    "resume": BulkAction(
        verb="Resume",
        past="left to the workers, which resume them",
        statuses=frozenset({RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.PARKED}),
        apply=lambda site, run_id: site.app.requeue(run_id),
    ),
    "unpark": BulkAction(
        verb="Unpark",
        past="unparked",
        statuses=frozenset({RunStatus.PARKED}),
        apply=lambda site, run_id: site.app.unpark(run_id),
    ),
    "remove": BulkAction(
        verb="Remove",
        past="removed",
        statuses=TERMINAL_STATUSES,
        apply=lambda site, run_id: site.store.remove(run_id),
        is_destructive=True,
    ),
}


#: The reply that made a call is among the last entries of its run.
_CONTEXT_ENTRIES = 12
_ANSWERABLE = PERSON_KINDS | {"result"}


class WaitingTask(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for an answer."""

    call: WaitingCall
    run: RunSummary
    #: What the model said when it made the call.
    context: str = ""

    @property
    def anchor(self) -> str:
        """An id for the page: that of a call may contain anything."""
        return hashlib.sha256(f"{self.call.run_id} {self.call.id}".encode()).hexdigest()[:12]

    @property
    def question(self) -> str:
        """What is asked, or why an approval is."""
        asked = self.call.arguments.get("question") if isinstance(self.call.arguments, dict) else None
        return asked if self.call.kind == "question" and isinstance(asked, str) else self.call.reason

    @property
    def options(self) -> list[str]:
        """The answers that a question offers."""
        given = self.call.arguments.get("options") if isinstance(self.call.arguments, dict) else None
        return [each for each in given if isinstance(each, str)] if isinstance(given, list) else []


def list_tasks(record: RunRecord, calls: Iterable[WaitingCall]) -> list[WaitingTask]:
    """Return the calls of a run that can be answered, without context."""
    run = summarize_run(record)
    return [WaitingTask(call=call, run=run) for call in calls if call.kind in _ANSWERABLE]


async def read_tasks(store: RunStore, calls: Sequence[WaitingCall]) -> list[WaitingTask]:
    """Return the tasks of these calls, with context. Those of runs that are gone are left out."""
    tasks: list[WaitingTask] = []
    for call in calls:
        try:
            record = await get_record(store, call.run_id)
            stored = await store.load(call.run_id, after=max(-1, record.next_seq - _CONTEXT_ENTRIES - 1))
        except RunNotFound:
            continue
        replies = [item for item in Transcript(get_loop_name(record)).read(stored.entries) if item.kind == "reply"]
        said = [item.text for item in replies if any(each.call_id == call.call_id for each in item.calls)]
        tasks.append(WaitingTask(call=call, run=summarize_run(record), context=said[-1] if said else ""))
    return tasks
