"""Forks a run: the form with the message and the results of a step, and its action."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.codec import decode_begin
from holdfast.runtime.reading.run_summary import summarize_run
from holdfast.web.ui.run_view.actions import parse_json, read_form, redirect
from holdfast.web.ui.run_view.run_steps import CallView, StepView
from holdfast.web.ui.run_view.run_window import read_number, read_step
from holdfast.web.ui.site import Site, get_principal


async def show_fork(site: Site, request: Request) -> Response:
    """Show the form of one step: as a page, or as the part that the page of the run loads."""
    record = await site.get_record(request)
    step = await read_step(site.store, record, read_number(request.path_params["step"]))
    has_parts = step.number == 1 and isinstance(decode_begin(await site.store.load(record.run_id)).info.prompt, list)
    template = "fork_form.html" if "part" in request.query_params else "fork_page.html"
    return site.render(
        request,
        template,
        run=summarize_run(record),
        step=step,
        message=None if has_parts else _get_message(step),
        calls=[view for part in step.parts for view in part.calls if view.result is not None],
        is_text=_is_text,
    )


def _get_message(step: StepView) -> str | None:
    """Return what the model was told before the step. `None`: nothing."""
    texts = [part.content.text for part in step.parts if part.kind in ("prompt", "user") and part.content is not None]
    return "\n\n".join(texts) if texts else None


def _is_text(view: CallView) -> bool:
    return isinstance(view.call.result, str)


async def fork(site: Site, request: Request) -> Response:
    """Queue a new run that starts at a step of this one, with what the form says."""
    record = await site.get_record(request)
    get_principal(request).check_another_run()
    form = await read_form(request)
    step = read_number(form.get("step", ""))
    new_id = await site.app.fork(record.run_id, **_read_edit(step, form))
    return redirect(request, f"/runs/{new_id}", "forked")


def _read_edit(step: int, form: dict[str, str]) -> dict[str, Any]:
    text = form.get("text", "")
    match form.get("edit"):
        case "result":
            value = (
                text if form.get("format") == "text" else parse_json(text, "the result is not JSON; put text in quotes")
            )
            return {"at_step": step, "results": {form.get("call_id", ""): value}}
        case "message":
            return {"at_step": step, "edited": text}
        case _ if text.strip():
            return {"at_step": step + 1, "edited": text}
        case _:
            return {"at_step": step}
