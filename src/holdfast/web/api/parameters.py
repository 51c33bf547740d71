"""Query parameters: reads them, and describes them for OpenAPI."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec
from starlette.requests import Request

from holdfast.runtime.reading import RunQuery
from holdfast.web.api.operation import Parameter
from holdfast.web.errors import RequestError

DEFAULT_PAGE, MAX_PAGE = 50, 200
#: Seconds. Proxies cut off a response that takes longer than a minute.
DEFAULT_WAIT, MAX_WAIT = 20, 50


class InvalidParameter(RequestError):
    """A query parameter or a header is not valid.

    What to do: Correct the parameter or header that the message names.
    """

    status = 422


def read_number(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > 9 or not 1 <= int(text) <= maximum:
        raise InvalidParameter(f"{name} is {text!r:.20}: give a number from 1 to {maximum}")
    return int(text)


def read_query(request: Request) -> RunQuery:
    given = request.query_params
    query: RunQuery = {"labels": _read_labels(given.getlist("label"))}
    if given.getlist("status"):
        query["status"] = given.getlist("status")
    if "agent" in given:
        query["agent"] = given["agent"]
    if "caller" in given:
        query["caller"] = given["caller"]
    if "parent" in given:
        query["parent"] = given["parent"]
    query["since"] = _read_time("since", given.get("since"))
    query["until"] = _read_time("until", given.get("until"))
    return query


def _read_labels(given: list[str]) -> Mapping[str, str]:
    for each in given:
        if "=" not in each:
            raise InvalidParameter(f"label is {each!r:.80}: write NAME=VALUE")
    return {name: value for name, _, value in (each.partition("=") for each in given)}


def _read_time(name: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else msgspec.convert(text, datetime)
    except msgspec.ValidationError as exc:
        raise InvalidParameter(f"{name} is {text!r:.80}: write a time such as 2026-01-31T12:00:00Z") from exc


_TIME: Mapping[str, Any] = {"type": "string", "format": "date-time"}


def describe_number(default: int, maximum: int) -> Mapping[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}


LIST_PARAMETERS = (
    Parameter(name="status", description="A status; may be repeated."),
    Parameter(name="agent", description="The name of an agent."),
    Parameter(name="caller", description="A caller id. Most principals see their own runs only."),
    Parameter(name="parent", description="The id of the run that started them."),
    Parameter(name="label", description="NAME=VALUE; may be repeated."),
    Parameter(name="since", description="Created at this time or later.", schema=_TIME),
    Parameter(name="until", description="Created before this time.", schema=_TIME),
    Parameter(
        name="limit",
        description="How many runs a page has.",
        schema=describe_number(DEFAULT_PAGE, MAX_PAGE),
    ),
    Parameter(name="cursor", description="The cursor of the page before."),
)
