"""Errors of the client: what the server says, as the error class that the App would have raised."""

import inspect

import httpx
import msgspec

from holdfast.checkpoint import errors as checkpoint_errors
from holdfast.checkpoint.errors import StoreUnavailable
from holdfast.core import errors as core_errors
from holdfast.core.errors import RunFailed, RunParked
from holdfast.core.run import waiting
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations import mailing
from holdfast.web import errors as web_errors
from holdfast.web.errors import RequestError
from holdfast.web.wire import PROBLEM_TYPE, Problem


class ServerUnavailable(StoreUnavailable):
    """The server did not answer, or cannot serve at present. The same call may succeed later.

    What to do: Retry the call later. Calls with an id or an `Idempotency-Key` may be repeated safely.
    """


#: By name: the classes that a problem may stand for.
_CLASSES = {
    name: kind
    for module in (core_errors, checkpoint_errors, waiting, mailing, web_errors)
    for name, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, HoldfastError)
}


def make_error(response: httpx.Response) -> HoldfastError:
    """Return the error that a response stands for. It has the server's text, and no attributes of its class."""
    try:
        problem = msgspec.json.decode(response.content, type=Problem)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = f"{response.request.url} answered {response.status_code}"
        return ServerUnavailable(text) if response.status_code >= 500 else RequestError(text)
    if problem.status >= 500:
        return ServerUnavailable(problem.detail)
    kind = _CLASSES.get(problem.type.removeprefix(PROBLEM_TYPE), RequestError)
    if kind is RunParked:
        reason, _, detail = problem.detail.removeprefix("parked, ").partition(": ")
        return RunParked(reason, detail)
    if kind is RunFailed:
        head, _, text = problem.detail.partition(" failed: ")
        return RunFailed(head.removeprefix("run "), text)
    # Not through `kind(...)`: the classes have arguments of their own, which the text has already.
    error = kind.__new__(kind)
    Exception.__init__(error, problem.detail)
    return error
