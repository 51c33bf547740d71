"""What a reader can do to a run: every action is a form that works without JavaScript."""

import asyncio
import logging
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.core.errors import DefinitionError
from holdfast.core.waiting import Answer, Approve, Deny, Value
from holdfast.errors import HoldfastError
from holdfast.runtime.reading import summarize_run
from holdfast.web.ui.pages.forms import read_form
from holdfast.web.ui.site import Site, get_principal

_log = logging.getLogger("holdfast.web")

#: A resume that is refused says so within this time; after it the run is under way.
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
            return Approve(arguments=_read_arguments(form.get("arguments", ""))), "approved"
        case "deny":
            return Deny(reason=form.get("reason", "").strip()), "denied"
        case "value":
            return Value(_parse_value(form.get("value", ""))), "answered"
    raise DefinitionError("the form has no decision: approve, deny or answer")


def _read_arguments(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        raise DefinitionError(f"the arguments are not a JSON object: {exc}") from None


def _parse_value(text: str) -> Any:
    """Parse JSON. Other text is taken as it is."""
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return text


async def cancel(site: Site, request: Request) -> Response:
    """Cancel a run."""
    record = await site.get_record(request)
    await site.app.cancel(record.run_id)
    stored = await site.store.get_record(record.run_id)
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
    elif (error := task.exception()) is not None and (await site.store.get_record(record.run_id)).token == record.token:
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
