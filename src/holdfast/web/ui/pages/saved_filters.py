"""Filters that a reader has saved, in a cookie of the browser; and the words that complete a filter."""

import base64
import binascii
import shlex
from collections.abc import Iterable, Sequence
from datetime import timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.errors import DefinitionError
from holdfast.runtime.reading.formatting import utc_now
from holdfast.runtime.reading.run_summary import RunSummary
from holdfast.web.auth import Principal
from holdfast.web.ui.pages.run_filter import FILTER_NAMES, RunsFilter, parse_filter
from holdfast.web.ui.run_view.actions import read_form, redirect
from holdfast.web.ui.site import Site, can_start

COOKIE = "holdfast_filters"
#: The longest cookie, in bytes, and the longest name. Browsers keep 4,096 bytes.
_MAX_COOKIE, _MAX_NAME = 3_500, 40
_LIFETIME = timedelta(days=365)
#: Words that a list of completions has.
_MAX_WORDS = 150
_EXAMPLES = ("since:1h", "since:24h", "since:7d", "cost:>1")


class SavedFilter(msgspec.Struct, frozen=True, array_like=True):
    """A filter of the list with a name."""

    name: str
    text: str = ""
    status: str = ""
    sort: str = ""

    @property
    def url(self) -> str:
        return RunsFilter(text=self.text, status=self.status, sort=self.sort).to_url()

    def fits(self, filter: RunsFilter) -> bool:
        """Whether the list is shown with this filter now."""
        return (self.text, self.status, self.sort) == (filter.text, filter.status, filter.sort)


def read_saved(request: Request) -> list[SavedFilter]:
    """Return what the browser has; nothing if it is not what the page has written."""
    try:
        content = base64.urlsafe_b64decode(request.cookies.get(COOKIE, "").encode())
        found = msgspec.json.decode(content, type=list[SavedFilter]) if content else []
    except (msgspec.MsgspecError, binascii.Error, UnicodeError, RecursionError):
        return []
    return [each for each in found if each.name and len(each.name) <= _MAX_NAME]


async def save_filter(site: Site, request: Request) -> Response:
    """Save the filter under a name, or forget a saved one."""
    form = await read_form(request)
    name = form.get("name", "").strip()
    kept = [each for each in read_saved(request) if each.name != name]
    shown = RunsFilter()
    if form.get("action") != "forget":
        if not 0 < len(name) <= _MAX_NAME:
            raise DefinitionError(f"give the filter a name of at most {_MAX_NAME} characters")
        shown = parse_filter(form.get("q", ""), form.get("status", ""), utc_now(), form.get("sort", ""))
        kept.append(SavedFilter(name, shown.text, shown.status, shown.sort))
    value = base64.urlsafe_b64encode(msgspec.json.encode(kept)).decode()
    if len(value) > _MAX_COOKIE:
        raise DefinitionError("the browser has no room for another filter: forget one first")
    response = redirect(request, f"/{shown.to_url()}", "")
    response.set_cookie(
        COOKIE,
        value,
        max_age=int(_LIFETIME.total_seconds()),
        path=f"{request.scope.get('root_path', '').rstrip('/')}/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


def list_words(site: Site, principal: Principal, runs: Iterable[RunSummary]) -> Sequence[str]:
    """Return words that complete a filter: its conditions, and values of runs that the reader sees."""
    runs = list(runs)
    agents = {*(site.app.agents if can_start(site, principal) else ()), *(run.agent for run in runs)}
    words = [f"agent:{name}" for name in sorted(agents)]
    words += sorted({f"caller:{run.caller}" for run in runs if run.caller})
    words += sorted({f"label.{name}:{value}" for run in runs for name, value in run.labels.items()})
    return [*(shlex.quote(word) for word in words[:_MAX_WORDS] if len(word) < 200), *_EXAMPLES, *FILTER_NAMES]
