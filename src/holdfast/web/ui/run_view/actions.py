"""Actions on a run: what its forms send."""

import asyncio
import logging
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import get_record
from holdfast.core.agents.calls import NOT_EXECUTED
from holdfast.core.errors import DefinitionError
from holdfast.core.json_schema import find_mismatch
from holdfast.core.run.waiting import Answer, Approve, Deny, Value
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.conversations import When
from holdfast.runtime.operations.mailing import MAX_MAIL_BYTES, NotWaiting
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.runtime.reading.transcript import read_record_waits
from holdfast.web.auth import check_decider
from holdfast.web.ui.argument_form import add_error, read_fields
from holdfast.web.ui.site import Site, get_principal
from holdfast.web.ui.tasks import WaitingTask, read_task

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
#: What may happen to a message that arrives during a turn.
_WHEN: dict[str, When] = {"queue": "queue", "steer": "steer", "interrupt": "interrupt"}
#: How an answer of the page is recorded.
VIA = "web"


async def answer(site: Site, request: Request) -> Response:
    """Answer a call that waits. An edit that is refused is shown again, with its errors."""
    record = await site.get_record(request)
    form, principal = await read_form(request), get_principal(request)
    call_id = form.get("call_id", "")
    digest = await check_decider(site.store, principal, record.run_id, call_id, form.get("digest", ""))
    decision: Answer
    if form.get("decision") == "edit":
        decision, refused = await _read_edit(site, record, call_id, form)
        if refused is not None:
            return render_task(site, request, refused, status=422)
        said = "approved"
    else:
        decision, said = _read_answer(form)
    by = principal.caller_id or "local"
    await site.app.answer(record.run_id, call_id, decision, by=by, via=VIA, digest=digest)
    return redirect(request, get_back_path(form, record.run_id), said)


def render_task(site: Site, request: Request, task: WaitingTask, status: int = 200) -> Response:
    """Show one call alone."""
    principal = get_principal(request)
    can_answer = "answer" in principal.scopes
    return site.render(
        request, "task.html", status=status, task=task, back="inbox", show_run=True, can_answer=can_answer
    )


async def _read_edit(
    site: Site, record: RunRecord, call_id: str, form: dict[str, str]
) -> tuple[Approve, WaitingTask | None]:
    """Return the approval with edited arguments, or the task with what is wrong with the edit."""
    call = next((each for each in read_record_waits(record) if each.call_id == call_id), None)
    if call is None:
        parse_json(form.get("arguments", "{}"), "the arguments are not a JSON object", dict[str, Any])
        raise NotWaiting(f"run {record.run_id} has no call {call_id} that waits for an answer")
    task = await read_task(site.store, record, call)
    if task is None:
        raise RunNotFound(record.run_id)
    fields, error = task.fields, ""
    arguments: dict[str, Any] = {}
    if fields and "arguments" not in form:
        fields, arguments = read_fields(fields, form)
    else:
        fields = ()
        try:
            arguments = parse_json(form.get("arguments", ""), "the arguments are not a JSON object", dict[str, Any])
        except DefinitionError as exc:
            error = str(exc)
    if not error and not any(field.error for field in fields):
        mismatch = find_mismatch(arguments, call.schema or {})
        fields, error = add_error(fields, mismatch) if mismatch else (fields, "")
    task = msgspec.structs.replace(task, fields=fields, error=error, edit=form.get("arguments", ""))
    return Approve(arguments=arguments), task if task.is_open else None


def _read_answer(form: dict[str, str]) -> tuple[Answer, str]:
    if "option" in form:
        return Value(form["option"]), "answered"
    match form.get("decision"):
        case "approve":
            return Approve(), "approved"
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
    """Leave a parked run to the workers, with what a person has found out about its calls in doubt."""
    record = await site.get_record(request)
    form = await read_form(request)
    given: dict[str, Any] = {}
    for number in (name.removeprefix("choice-") for name in form if name.startswith("choice-")):
        call_id = form.get(f"call-{number}", "")
        match form[f"choice-{number}"]:
            case "happened":
                given[call_id] = _parse_value(form.get(f"result-{number}", ""))
            case "not executed":
                given[call_id] = NOT_EXECUTED
    by = get_principal(request).caller_id or "local"
    await site.app.unpark(record.run_id, given, by=by, via=VIA)
    return redirect(request, get_back_path(form, record.run_id), "unparked")


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
        when = _WHEN.get(form.get("when", "queue"))
        if when is None:
            raise DefinitionError(f"when is {form['when']!r:.40}: use {', '.join(_WHEN)}")
        await site.app.conversation(record.agent_name, key).post(text, when=when)
    else:
        await site.app.send(record.run_id, text)
    return redirect(request, get_back_path(form, record.run_id), "sent")


def get_back_path(form: dict[str, str], run_id: str) -> str:
    """Return the page that sent the form."""
    places = {"inbox": "/inbox", "conversation": f"/conversations/{run_id}"}
    return places.get(form.get("back", ""), f"/runs/{run_id}")


def redirect(request: Request, path: str, said: str) -> Response:
    """Show a page, with what an action has said."""
    said = f"?said={said}" if said else ""
    return RedirectResponse(f"{request.scope.get('root_path', '')}{path}{said}", status_code=303)
