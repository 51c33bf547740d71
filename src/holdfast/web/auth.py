"""Who may do what over HTTP: principals, the check of every request, and tokens for browsers."""

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence, Set
from datetime import datetime
from typing import Literal, Unpack, get_args
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request

from holdfast.checkpoint.errors import RunDamaged, RunNotFound
from holdfast.checkpoint.record import RunFilter, RunRecord
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.core.errors import DefinitionError, InvalidRunId
from holdfast.core.run.info import check_run_id
from holdfast.runtime.reading.run_views import RunQuery, RunRecords, list_records, make_filter
from holdfast.runtime.reading.transcript import read_record_waits
from holdfast.web.errors import Forbidden, NotAuthenticated

#: `read`: status, listing, events. `send`: messages and signals. `answer`: approvals and answers. `start`: new runs,
#: forks and conversations. `control`: cancel, resume and unpark.
Scope = Literal["read", "send", "answer", "start", "control"]

ALL_SCOPES: frozenset[Scope] = frozenset(get_args(Scope))

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Ids of child runs, conversations and scheduled runs; of the items of a batch; and of fan-outs.
_DERIVED_ID = re.compile(r":|(?:\.|^fanout-)[0-9a-f]{16}(?:\.\d+)?$")
_PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a request. It sees the runs of its caller id; all others do not exist for it.

    Raises:
        DefinitionError: a scope is unknown, or the caller id is empty although the principal does not see all runs.
    """

    #: The caller id of the runs that it starts and sees.
    caller_id: str
    scopes: Set[Scope] = ALL_SCOPES
    #: Sees the runs of all callers.
    sees_all: bool = False
    #: Sees this run or conversation only. Set by browser tokens.
    run_id: str | None = None
    #: Event streams end then. `None`: never.
    expires_at: datetime | None = None
    #: The audiences whose approvals and questions it decides, with the scope `answer`. `None`: all of them.
    audiences: Set[str] | None = None

    def __post_init__(self) -> None:
        unknown = set(self.scopes) - ALL_SCOPES
        if unknown:
            raise DefinitionError(f"unknown scope {', '.join(sorted(unknown))}: use {', '.join(get_args(Scope))}")
        if not self.caller_id and not self.sees_all and self.run_id is None:
            raise DefinitionError("the caller id of a principal is empty: name the caller, or set sees_all")

    def can_see(self, run_id: str, caller_id: str) -> bool:
        """Whether the run with this id and this caller exists for the principal: the rule of every list and page."""
        if self.run_id is not None:
            return run_id == self.run_id
        return self.sees_all or caller_id == self.caller_id

    def check_visible(self, run_id: str, caller_id: str) -> None:
        """Raise `RunNotFound` if the run does not exist for the principal."""
        if not self.can_see(run_id, caller_id):
            raise RunNotFound(run_id)

    def check_another_run(self) -> None:
        """Raise `Forbidden` if the principal has a token for one run, which starts no other."""
        if self.run_id is not None:
            raise Forbidden("this token is valid for one run or conversation: it cannot start another")

    def check_new_id(self, run_id: str | None) -> None:
        """Refuse the id of a new run if holdfast may derive it for another caller: a child, a chat, an item of a batch.

        Raises:
            InvalidRunId: it has such a form, and the principal neither sees all runs nor has a token for this one. Or
                it is `.` or `..`, which browsers and proxies take for folders.
        """
        if run_id in (".", ".."):
            raise InvalidRunId(f"{run_id!r} cannot be the id of a new run: browsers take it for a folder")
        if run_id is not None and _DERIVED_ID.search(run_id) and not self.sees_all and run_id != self.run_id:
            form = "its form is that of the ids that holdfast derives"
            raise InvalidRunId(f"{run_id!r:.80} cannot be the id of a new run: {form}; choose another one")

    def may_decide(self, audience: str) -> bool:
        """Whether it may answer a call with this audience. One without an audience is for everyone with the scope."""
        return "answer" in self.scopes and (not audience or self.audiences is None or audience in self.audiences)

    def require(self, scope: Scope) -> None:
        """Raise `Forbidden` if the principal does not have the scope."""
        if scope not in self.scopes:
            raise Forbidden(f"this needs the scope {scope!r}, which your credentials do not have")


#: Returns the sender of a request, or `None` if it has no valid credentials.
Authorize = Callable[[Request], Principal | Awaitable[Principal | None] | None]
#: The names of those who decide for each audience of an approval.
Deciders = Mapping[str, Sequence[str]]

#: A user of this machine, where no `authorize` is given.
LOCAL_PRINCIPAL = Principal(caller_id="", sees_all=True)


async def authenticate(
    request: Request, authorize: Authorize | None, *, allowed_origins: Collection[str] = ()
) -> Principal:
    """Return the sender of the request.

    Without `authorize` only clients of a Unix socket are served: the permissions of its file say who they are.

    Args:
        allowed_origins: other origins, such as `https://chat.example.com`, whose pages may send changes.

    Raises:
        NotAuthenticated: `authorize` returned `None`.
        Forbidden: the request is a change sent by a page of another origin, or there is no `authorize` and the server
            does not listen on a Unix socket.
    """
    check_origin(request, allowed_origins)
    if authorize is None:
        check_unix_socket(request)
        return LOCAL_PRINCIPAL
    found = authorize(request)
    principal = await found if inspect.isawaitable(found) else found
    if principal is None:
        raise NotAuthenticated("the request has no valid credentials")
    if not isinstance(principal, Principal):
        raise DefinitionError(f"authorize returned {type(principal).__name__}: return a Principal or None")
    return principal


def check_origin(request: Request, allowed: Collection[str] = ()) -> None:
    """Refuse a change that a page of another origin sent. Clients that are no browsers send neither header.

    Raises:
        Forbidden: Sec-Fetch-Site, or without it Origin, names another origin that is not in `allowed`.
    """
    if request.method in _SAFE_METHODS:
        return
    origin = request.headers.get("origin")
    if origin is not None and origin in allowed:
        return
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        same = site in ("same-origin", "none")
    else:
        same = origin is None or _is_own_origin(origin, request.headers.get("host", ""))
    if not same:
        raise Forbidden("a page of another origin sent this request: changes are accepted from the same origin only")


def _is_own_origin(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:  # such as half an IPv6 address
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() != ""


def check_unix_socket(request: Request) -> None:
    """Refuse a client of a TCP port, which may be a proxy that serves others, and a proxy that says that it is one.

    Raises:
        Forbidden: the server does not listen on a Unix socket, or a proxy forwarded the request.
    """
    server = request.scope.get("server")
    forwarded = any(name in request.headers for name in _PROXY_HEADERS)
    if forwarded or server is None or server[1] is not None:
        raise Forbidden("without authorize only clients of a Unix socket are served: give an authorize function")


def read_bearer_token(request: Request) -> str:
    """Return the token of a request: `Authorization: Bearer`, or of a GET the query parameter `token`. Empty: none.

    The query is for EventSource, which sends no headers.
    """
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return token
    return request.query_params.get("token", "") if request.method == "GET" else ""


async def find_visible(store: RunStore, principal: Principal, run_id: str) -> RunRecord:
    """Return the record of a run.

    Raises:
        RunNotFound: there is none, or it does not exist for the principal.
        RunDamaged: its record cannot be read, and the principal may see all runs or this one.
    """
    try:
        check_run_id(run_id)
    except InvalidRunId:  # not every store can look for any text
        raise RunNotFound(run_id) from None
    try:
        record = await get_record(store, run_id)
    except RunDamaged:
        if not (principal.sees_all or principal.run_id == run_id):
            raise RunNotFound(run_id) from None  # whose run it is cannot be read
        raise
    principal.check_visible(run_id, record.caller_id)
    return record


async def list_visible(
    store: RunStore, principal: Principal, *, limit: int, cursor: str | None = None, **query: Unpack[RunQuery]
) -> RunRecords:
    """Return a page of the runs that exist for the principal, newest first. Raises as `list_records`."""
    if principal.run_id is not None:
        return RunRecords(records=await _list_one(store, principal, principal.run_id, query))
    return await list_records(store, limit=limit, cursor=cursor, **restrict(query, principal))


async def _list_one(store: RunStore, principal: Principal, run_id: str, query: RunQuery) -> tuple[RunRecord, ...]:
    run_filter, statuses = make_filter(**query)
    try:
        record = await find_visible(store, principal, run_id)
    except RunNotFound:
        return ()
    fits = run_filter.matches(record) and (statuses is None or record.current_status in statuses)
    return (record,) if fits else ()


async def check_decider(
    store: RunStore, principal: Principal, run_id: str, call_id: str, digest: str | None
) -> str | None:
    """Return the digest for the answer to a call: the given one, or that of the wait that was checked.

    Raises:
        Forbidden: the call is for an audience that the principal does not belong to.
    """
    if principal.audiences is None:
        return digest
    waits = read_record_waits(await get_record(store, run_id))
    call = next((each for each in waits if each.call_id == call_id), None)
    if call is None:
        return ""  # that of no wait: a call that begins to wait meanwhile is not answered
    if not principal.may_decide(call.audience):
        raise Forbidden(f"call {call_id} of run {run_id} is for {call.audience}, and you do not decide for it")
    return call.digest if digest is None else digest


def restrict(query: RunQuery, principal: Principal) -> RunQuery:
    """Return the query, limited to the caller id of the principal unless it sees all runs."""
    if principal.sees_all:
        return query
    if query.get("caller") not in (None, principal.caller_id):
        return RunQuery(status=[])
    return RunQuery(**query | {"caller": principal.caller_id})


def restrict_filter(run_filter: RunFilter, principal: Principal) -> RunFilter:
    """The same for a filter of the store. The runs that it finds are still to be checked with `can_see`."""
    if principal.sees_all or principal.run_id is not None:
        return run_filter
    return msgspec.structs.replace(run_filter, caller_id=principal.caller_id)
