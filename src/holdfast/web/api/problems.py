"""Errors as problem+json (RFC 9457)."""

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.batteries.schedule import JobNotFound
from holdfast.checkpoint.errors import (
    CheckpointError,
    InvalidCursor,
    RecordDecodeError,
    RunDamaged,
    RunExists,
    RunNotFound,
    StoreClosed,
    StoreError,
    StoreUnavailable,
    TurnNotFound,
)
from holdfast.core.errors import (
    DefinitionError,
    NotDurable,
    PayloadError,
    RunAlreadyRunning,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunParked,
)
from holdfast.core.run.waiting import RunWaiting
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.mailing import NotWaiting
from holdfast.web.errors import NotAuthenticated, RequestError
from holdfast.web.sse import encode_json
from holdfast.web.wire import PROBLEM_JSON, PROBLEM_TYPE, Problem

log = logging.getLogger("holdfast.web")

#: The first class that an error is an instance of decides. Other errors are 500.
_STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (RunNotFound, 404),
    (TurnNotFound, 404),
    (JobNotFound, 404),
    (NotWaiting, 404),
    (InvalidCursor, 422),
    (DefinitionError, 422),
    (PayloadError, 422),
    (StoreUnavailable, 503),
    (StoreClosed, 503),
    (RunInterrupted, 503),
    (NotDurable, 503),
    (StoreError, 500),
    (RunExists, 409),
    (RunAlreadyRunning, 409),
    (CheckpointError, 409),
    # For `GET /runs/{id}/result`: the run has no result.
    (RunFailed, 409),
    (RunCancelled, 409),
    (RunParked, 409),
    (RunWaiting, 409),
)

#: The text of a server error goes to the log only: it may name files and hosts.
_SERVER_DETAILS = {
    500: "the server could not process the request: its log says why",
    503: "the server or its store is not available at present: try again",
}
_DAMAGED_ADVICE = "restore the store from a backup, or remove the run with `holdfast rm --force`"
RETRY_AFTER = {"retry-after": "2"}


def get_status(error: HoldfastError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def format_error(error: HoldfastError) -> str:
    """Return the text of an error that the sender of the request may read, with what to do about a damaged run."""
    return f"{error}: {_DAMAGED_ADVICE}" if isinstance(error, RunDamaged | RecordDecodeError) else str(error)


async def respond_to_error(request: Request, error: Exception) -> Response:
    """Return an error of holdfast as a problem."""
    assert isinstance(error, HoldfastError)
    status = get_status(error)
    if status >= 500 or isinstance(error, RunDamaged | RecordDecodeError):
        log.warning("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    headers = RETRY_AFTER if status == 503 else {}
    if isinstance(error, NotAuthenticated):
        headers = {"www-authenticate": "Bearer"}
    detail = _SERVER_DETAILS.get(status, format_error(error))
    return make_problem(status, detail, kind=type(error).__name__, headers=headers)


async def respond_to_http_error(request: Request, error: Exception) -> Response:
    """Return an unknown path or a wrong method as a problem."""
    assert isinstance(error, HTTPException)
    return make_problem(error.status_code, error.detail, headers=dict(error.headers or {}))


async def respond_to_unexpected_error(request: Request, error: Exception) -> Response:
    """Return any other error as a problem. The server logs it."""
    return make_problem(500, _SERVER_DETAILS[500])


def make_problem(status: int, detail: str, *, kind: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """Return a problem. `kind` is the name of the error class; without one the status says it all."""
    phrase = HTTPStatus(status).phrase
    title = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).capitalize() or phrase
    problem = Problem(
        type=f"{PROBLEM_TYPE}{kind}" if kind else "about:blank",
        title=title,
        status=status,
        detail=detail,
    )
    return Response(encode_json(problem), status, headers, PROBLEM_JSON)
