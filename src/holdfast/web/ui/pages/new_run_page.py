"""The form that starts a run."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from holdfast.checkpoint.errors import RunConflict, RunExists
from holdfast.core.errors import DefinitionError
from holdfast.ids import make_id
from holdfast.web.api.run_operations import submit_visible
from holdfast.web.errors import Forbidden
from holdfast.web.ui.needs import count_needs
from holdfast.web.ui.run_view.actions import parse_json, read_form, redirect
from holdfast.web.ui.site import Site, can_start, get_principal


async def show_form(site: Site, request: Request) -> Response:
    """Show the empty form. The URL may name an agent."""
    _require_start(site, request)
    return await _render(site, request, {"agent": request.query_params.get("agent", "")})


async def start_run(site: Site, request: Request) -> Response:
    """Queue the run and show it. A form that is not valid is shown again, with its fields and the error."""
    _require_start(site, request)
    form = await read_form(request)
    try:
        run_id = await _submit(site, request, form)
    except RunConflict as exc:
        error = f"this form has started the run {exc.run_id} already: submit it again to start another one"
        return await _render(site, request, form, error=error, status=409)
    except RunExists:
        error = "the id of this form is taken: submit it again"
        return await _render(site, request, form, error=error, status=409)
    except DefinitionError as exc:
        return await _render(site, request, form, error=str(exc), status=422)
    return redirect(request, f"/runs/{run_id}", "started")


def _require_start(site: Site, request: Request) -> None:
    if not can_start(site, get_principal(request)):
        raise Forbidden("no run can be started here: this needs an App with agents, and no token for one run")


async def _submit(site: Site, request: Request, form: dict[str, str]) -> str:
    prompt = form.get("input", "").strip()
    if not prompt:
        raise DefinitionError("the input is empty: write what the agent should do")
    return await submit_visible(
        site.app,
        get_principal(request),
        form.get("agent", ""),
        prompt,
        inputs=_parse_data(form.get("data", "")),
        # The id is in the form: sent twice, the form starts one run.
        run_id=form.get("run_id") or None,
        labels=_parse_labels(form.get("labels", "")),
    )


def _parse_data(text: str) -> dict[str, Any] | None:
    """Parse the structured data of a run; `None` if there is none.

    Raises:
        DefinitionError: it is not a JSON object.
    """
    if not text.strip():
        return None
    data: dict[str, Any] = parse_json(text, 'the data is not a JSON object, such as {"order": "A17"}', dict[str, Any])
    return data


def _parse_labels(text: str) -> dict[str, str]:
    """Parse one label a line, such as `tenant=acme`.

    Raises:
        DefinitionError: a line has no name or no equals sign, or a name occurs twice.
    """
    labels: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:
            raise DefinitionError(f"the label {line!r:.80} is not valid: write one a line, such as tenant=acme")
        if name in labels:
            raise DefinitionError(f"the label {name!r:.80} is there twice: give it one value")
        labels[name] = value
    return labels


async def _render(
    site: Site, request: Request, form: dict[str, str], *, error: str = "", status: int = 200
) -> Response:
    return site.render(
        request,
        "new_run.html",
        status=status,
        section="runs",
        agents=sorted(site.app.agents),
        form={"agent": "", "input": "", "data": "", "labels": ""} | form | {"run_id": make_id()},
        error=error,
        pending_count=await count_needs(site.store, get_principal(request)),
    )
