"""Operations of the API as data: their parameters and bodies, checked before a handler runs."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.checkpoint.record import RunRecord
from holdfast.checkpoint.store import RunStore
from holdfast.core.errors import DefinitionError
from holdfast.core.run.waiting import RunWaiting, WaitingCall
from holdfast.runtime.reading.query_fields import QUERY_FIELDS, QueryField
from holdfast.runtime.reading.run_views import RunQuery
from holdfast.web.api.problems import RETRY_AFTER
from holdfast.web.auth import Principal, Scope, find_visible
from holdfast.web.errors import RequestError
from holdfast.web.sse import encode_json
from holdfast.web.wire import Unfinished


@dataclass(frozen=True, slots=True)
class Context:
    """One request: who sent it, and what it says."""

    app: App
    principal: Principal
    request: Request
    #: Decoded; `None` if the operation has no body.
    body: Any

    @property
    def run_id(self) -> str:
        """The run in the path."""
        return str(self.request.path_params["run_id"])

    @property
    def store(self) -> RunStore:
        if self.app.store is None:
            raise DefinitionError("this App has no store: give it one to serve its runs")
        return self.app.store

    async def find_run(self) -> RunRecord:
        """Return the record of the run in the path.

        Raises:
            RunNotFound: there is none, or the principal may not see it.
        """
        return await self.find_visible(self.run_id)

    async def find_visible(self, run_id: str) -> RunRecord:
        """Return the record of a run that the principal may see. Raises `RunNotFound`."""
        return await find_visible(self.store, self.principal, run_id)


#: Returns a struct, which is sent as JSON, or a response.
Handler = Callable[[Context], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParameter:
    """A query parameter or a header."""

    name: str
    description: str
    place: Literal["query", "header"] = "query"
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Handler
    #: What the principal needs. `None`: the path has a secret, which is the credential; `check` verifies it.
    scope: Scope | None
    summary: str
    #: The type of the request's body. `None`: it has none.
    request: Any = None
    #: The type of the response's body. `None`: it has none.
    response: Any = None
    status: int = 200
    #: The types of the bodies of other successful responses, by status; `None` for one without a body.
    other_responses: Mapping[int, Any] = field(default_factory=dict)
    media_type: str = "application/json"
    parameters: tuple[RequestParameter, ...] = ()
    #: Is called before the body is read: that of a stranger is not kept in memory.
    check: Handler | None = None


#: The largest body of a request. A message to a run may have 4 MiB, which JSON may make longer.
MAX_BODY_BYTES = 8 * 1024 * 1024


class BodyTooLarge(RequestError):
    """The body of the request is too large. It was not read to its end.

    What to do: Send a smaller body.
    """

    status = 413


class UnsupportedMediaType(RequestError):
    """The body of the request is not JSON by its Content-Type.

    What to do: Send `Content-Type: application/json`.
    """

    status = 415


class InvalidBody(RequestError):
    """The body of the request is not the JSON that this path expects.

    What to do: Correct the body as the message says; the OpenAPI description has its schema.
    """

    status = 422


async def read_body(request: Request, expected: Any) -> Any:
    """Return the body of the request, decoded as the type `expected`.

    Raises:
        BodyTooLarge: it has more than `MAX_BODY_BYTES`. UnsupportedMediaType: it is not declared as JSON.
        InvalidBody: it is not JSON of the expected type.
    """
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedMediaType("send JSON with the header Content-Type: application/json")
    body = await _read_bounded(request)
    try:
        return msgspec.json.decode(body, type=expected)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidBody(f"the body is not what this path expects: {exc}") from exc


async def _read_bounded(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > MAX_BODY_BYTES:
        raise _make_too_large()
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _make_too_large()
    return bytes(body)


def _make_too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the body is too large: send at most {MAX_BODY_BYTES} bytes")


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
    """Return the conditions that the parameters of a request have.

    Raises:
        InvalidParameter: one of them is not valid.
    """
    given = {field: request.query_params.getlist(field.parameter) for field in QUERY_FIELDS}
    return cast("RunQuery", {field.name: _read_field(field, texts) for field, texts in given.items() if texts})


def _read_field(field: QueryField, texts: list[str]) -> Any:
    match field.kind:
        case "texts":
            return texts
        case "pairs":
            return _read_labels(texts)
        case "time":
            return _read_time(field.name, texts[-1])
        case "text":
            return texts[-1]


def _read_labels(given: list[str]) -> Mapping[str, str]:
    for each in given:
        if "=" not in each:
            raise InvalidParameter(f"label is {each!r:.80}: write NAME=VALUE")
    return {name: value for name, _, value in (each.partition("=") for each in given)}


def _read_time(name: str, text: str) -> datetime:
    try:
        return msgspec.convert(text, datetime)
    except msgspec.ValidationError as exc:
        raise InvalidParameter(f"{name} is {text!r:.80}: write a time such as 2026-01-31T12:00:00Z") from exc


def describe_number(default: int, maximum: int) -> Mapping[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}


def _describe_field(field: QueryField) -> RequestParameter:
    form = " NAME=VALUE." if field.kind == "pairs" else ""
    repeat = " May be repeated." if field.is_repeatable else ""
    schema = {"type": "string", "format": "date-time"} if field.kind == "time" else {"type": "string"}
    return RequestParameter(name=field.parameter, description=f"{field.help}{form}{repeat}", schema=schema)


LIST_PARAMETERS = (
    *map(_describe_field, QUERY_FIELDS),
    RequestParameter(
        name="limit",
        description="How many runs a page has.",
        schema=describe_number(DEFAULT_PAGE, MAX_PAGE),
    ),
    RequestParameter(name="cursor", description="The cursor of the page before."),
)


async def wait_for_end(
    context: Context, end: Callable[[], Awaitable[object]], run_id: str, turn_id: str = ""
) -> Response | None:
    """Wait for an end, as long as the request says. Returns what is answered if it has not come."""
    wait = read_number(context.request, "wait", DEFAULT_WAIT, MAX_WAIT)
    calls: tuple[WaitingCall, ...] = ()
    try:
        async with asyncio.timeout(wait):
            await end()
            return None
    except TimeoutError:
        pass
    except RunWaiting as exc:
        if not exc.calls:  # a conversation between two turns
            raise
        calls = exc.calls
    unfinished = Unfinished(run_id=run_id, turn_id=turn_id, calls=calls)
    return Response(encode_json(unfinished), 202, RETRY_AFTER if calls else None, "application/json")
