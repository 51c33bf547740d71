"""Who may send which request: origins, Unix sockets, principals and browser tokens."""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest
from starlette.requests import Request

from holdfast import Agent, App, Reply
from holdfast.checkpoint.record import RunFilter
from holdfast.core import Message, ToolSchema
from holdfast.core.errors import DefinitionError, InvalidRunId
from holdfast.fanout.cells import make_fanout_id
from holdfast.ids import make_id
from holdfast.stores.memory import MemoryStore
from holdfast.testing.manual_clock import ManualClock
from holdfast.web.auth import (
    LOCAL_PRINCIPAL,
    Principal,
    Scope,
    authenticate,
    check_origin,
    restrict,
    restrict_filter,
)
from holdfast.web.errors import Forbidden, InvalidToken, NotAuthenticated
from holdfast.web.security import LinkLogin, LocalToken
from holdfast.web.tokens import BrowserTokens

SECRET = "a secret of at least 16 bytes"


def make_request(
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    client: str = "127.0.0.1",
    query: str = "",
    server: tuple[str, int | None] | None = ("127.0.0.1", 8000),
) -> Request:
    given = {"host": "localhost:8000", **(headers or {})}
    return Request(
        {
            "type": "http",
            "method": method,
            "path": "/",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": (client, 50000) if client else None,
            "server": server,
        }
    )


@pytest.mark.parametrize(
    ("headers", "accepted"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://localhost:8000"}, False),
        ({"origin": "http://localhost:8000"}, True),
        ({"origin": "http://localhost:9000"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"origin": "file://localhost:8000"}, False),
        ({"origin": "", "host": ""}, False),
        ({"origin": "http://["}, False),
        ({"sec-fetch-site": "cross-site", "origin": "https://chat.example"}, True),
    ],
)
def test_a_change_is_accepted_from_its_own_origin_and_the_allowed_ones(headers: dict[str, str], accepted: bool) -> None:
    allowed = ["https://chat.example"]
    check_origin(make_request("GET", headers), allowed)  # reads are left to the browser's own rules
    if accepted:
        check_origin(make_request("POST", headers), allowed)
    else:
        with pytest.raises(Forbidden, match="another origin"):
            check_origin(make_request("POST", headers), allowed)


async def test_clients_of_a_unix_socket_are_served_without_authorize() -> None:
    assert await authenticate(make_request(client="", server=("/run/api.sock", None)), None) is LOCAL_PRINCIPAL


@pytest.mark.parametrize(
    "request_",
    [
        make_request(),
        make_request(client="192.0.2.7"),
        make_request(client="", server=None),
        make_request(headers={"x-forwarded-for": "192.0.2.7"}, server=("/run/api.sock", None)),
        make_request(headers={"forwarded": "for=192.0.2.7"}, server=("/run/api.sock", None)),
    ],
)
async def test_other_clients_are_refused_without_authorize(request_: Request) -> None:
    with pytest.raises(Forbidden, match="give an authorize function"):
        await authenticate(request_, None)


def test_a_local_token_is_sent_as_a_bearer_token() -> None:
    login = LocalToken()
    right = {"authorization": f"Bearer {login.token}"}
    assert login.authorize(make_request(headers=right)) is LOCAL_PRINCIPAL
    for wrong in ("", "Bearer", "Bearer x", f"Basic {login.token}"):
        assert login.authorize(make_request(headers={"authorization": wrong})) is None
    for refused in ("x" * 15, "é" * 16):
        with pytest.raises(DefinitionError, match="give 16 characters or more"):
            LocalToken(refused)
    assert LocalToken("x" * 16).token == "x" * 16


async def test_the_cookie_of_a_login_link_has_the_token_of_the_link_and_no_other_value_is_accepted() -> None:
    login, other = LinkLogin(), LinkLogin()
    response = await login.exchange(make_request("GET", query=login.path.partition("?")[2]))
    cookie, _, attributes = response.headers["set-cookie"].partition("; ")
    name, _, value = cookie.partition("=")
    assert (response.status_code, response.headers["location"]) == (303, "/")
    assert attributes == "HttpOnly; Path=/; SameSite=strict"
    assert login.authorize(make_request("GET", {"cookie": f"{name}={value}"})) is LOCAL_PRINCIPAL
    for wrong in ("", "guess", value[:-1], value + "x", other.path.partition("=")[2]):
        assert login.authorize(make_request("GET", {"cookie": f"{name}={wrong}"})) is None
    assert login.authorize(make_request("GET", {"cookie": f"another={value}"})) is None
    assert login.authorize(make_request("GET", {"authorization": f"Bearer {value}"})) is None


@pytest.mark.parametrize("query", ["", "token=", "token=guess"])
async def test_a_link_with_another_token_sets_no_cookie(query: str) -> None:
    with pytest.raises(NotAuthenticated, match="the link is not valid"):
        await LinkLogin().exchange(make_request("GET", query=query))


async def test_authorize_decides_and_may_be_async() -> None:
    ann = Principal(caller_id="ann")

    async def authorize(request: Request) -> Principal | None:
        return ann if request.headers.get("x-key") == "right" else None

    assert await authenticate(make_request(headers={"x-key": "right"}, client="192.0.2.7"), authorize) is ann
    with pytest.raises(NotAuthenticated):
        await authenticate(make_request(headers={"x-key": "wrong"}), authorize)
    with pytest.raises(Forbidden):
        await authenticate(make_request(headers={"x-key": "right", "sec-fetch-site": "cross-site"}), authorize)


async def test_an_authorize_that_returns_something_else_is_an_error_and_no_access() -> None:
    with pytest.raises(DefinitionError, match="return a Principal or None"):
        await authenticate(make_request(), lambda request: "ann")  # type: ignore[arg-type,return-value]


def test_a_principal_sees_its_own_runs() -> None:
    ann = Principal(caller_id="ann")
    assert ann.can_see("r1", "ann")
    assert not ann.can_see("r1", "bob")
    assert LOCAL_PRINCIPAL.can_see("r1", "bob")
    one = Principal(caller_id="ann", run_id="r1")
    assert one.can_see("r1", "bob")
    assert not one.can_see("r2", "ann"), "a token for one run opens no other run of its caller"


def test_a_principal_without_a_name_is_refused() -> None:
    with pytest.raises(DefinitionError, match="sees_all"):
        Principal(caller_id="")
    with pytest.raises(DefinitionError, match="unknown scope write"):
        Principal(caller_id="ann", scopes={"write"})  # type: ignore[arg-type]


def test_a_token_gives_its_scopes_on_its_run() -> None:
    tokens = BrowserTokens(SECRET)
    principal = tokens.verify(tokens.issue("r1", caller_id="ann", scopes={"read", "send"}))
    assert (principal.caller_id, principal.run_id, principal.sees_all) == ("ann", "r1", False)
    principal.require("send")
    with pytest.raises(Forbidden, match="control"):
        principal.require("control")


async def test_a_token_expires() -> None:
    clock = ManualClock()
    tokens = BrowserTokens(SECRET, clock=clock)
    token = tokens.issue("r1", expires_in=timedelta(minutes=5))
    await clock.advance(timedelta(minutes=4))
    tokens.verify(token)
    await clock.advance(timedelta(minutes=1))
    with pytest.raises(InvalidToken, match="expired"):
        tokens.verify(token)


async def test_a_token_is_valid_for_an_hour_by_default() -> None:
    clock = ManualClock()
    tokens = BrowserTokens(SECRET, clock=clock)
    token = tokens.issue("r1")
    await clock.advance(timedelta(minutes=59))
    tokens.verify(token)
    await clock.advance(timedelta(minutes=1))
    with pytest.raises(InvalidToken, match="expired"):
        tokens.verify(token)


def test_a_changed_token_is_refused() -> None:
    tokens = BrowserTokens(SECRET)
    token = tokens.issue("r1")
    other = tokens.issue("r2")
    body, _, signature = token.rpartition(".")
    forged = [other.rpartition(".")[0] + "." + signature, body + ".", "." + signature, token + "x", "", ".", "é.é"]
    forged += [BrowserTokens(SECRET + "x").issue("r1")]
    forged += [token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :] for place in range(len(body))]
    for each in forged:
        with pytest.raises(InvalidToken):
            tokens.verify(each)


@pytest.mark.parametrize("body", [b"{}", b"no JSON", b'{"run_id": 1}'])
def test_a_token_with_the_content_of_another_release_is_refused(body: bytes) -> None:
    """It is signed with the right secret: only the content differs."""
    encoded = base64.urlsafe_b64encode(body).decode().rstrip("=")
    signature = hmac.digest(SECRET.encode(), b"holdfast browser token 1\n" + encoded.encode(), hashlib.sha256)
    token = f"{encoded}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"
    with pytest.raises(InvalidToken, match="another release of holdfast issued it"):
        BrowserTokens(SECRET).verify(token)


def test_a_token_is_read_from_the_header_and_for_reads_from_the_query() -> None:
    tokens = BrowserTokens(SECRET)
    scopes: set[Scope] = {"read", "send"}
    token = tokens.issue("r1", scopes=scopes)

    def find(request: Request) -> Principal | None:
        return tokens.authorize(request)

    assert find(make_request("POST", {"authorization": f"Bearer {token}"})) is not None
    assert find(make_request("GET", query=f"token={token}")) is not None
    assert find(make_request("POST", query=f"token={token}")) is None, "a link must not change anything"
    assert find(make_request("GET", {"authorization": "Basic QTpC"})) is None
    assert find(make_request("GET", query="token=forged.forged")) is None


@pytest.mark.parametrize("secret", ["x" * 15, b"x" * 15, 1234567890123456])
def test_a_short_secret_is_refused(secret: str | bytes) -> None:
    with pytest.raises(DefinitionError, match="16 bytes"):
        BrowserTokens(secret)


@pytest.mark.parametrize("secret", ["é" * 8, b"x" * 16])
def test_a_secret_of_16_bytes_is_accepted(secret: str | bytes) -> None:
    tokens = BrowserTokens(secret)
    assert tokens.verify(tokens.issue("r1")).run_id == "r1"


@pytest.mark.parametrize(
    ("run_id", "scopes", "expires_in"),
    [("no id", {"read"}, timedelta(1)), ("r1", {"write"}, timedelta(1)), ("r1", {"read"}, timedelta(-1))],
)
def test_a_token_that_would_not_work_is_not_issued(run_id: str, scopes: set[Scope], expires_in: timedelta) -> None:
    with pytest.raises(DefinitionError):
        BrowserTokens(SECRET).issue(run_id, scopes=scopes, expires_in=expires_in)


def test_a_principal_decides_for_its_audiences_with_the_scope() -> None:
    finance = Principal(caller_id="ann", audiences={"finance"})
    assert [finance.may_decide(each) for each in ("finance", "legal", "")] == [True, False, True]
    assert Principal(caller_id="ann").may_decide("legal")
    assert not Principal(caller_id="ann", scopes={"read"}).may_decide("")


async def test_ids_that_holdfast_derives_are_not_for_callers() -> None:
    ann, one = Principal(caller_id="ann"), Principal(caller_id="ann", run_id="chat:1")
    async with App([Agent(name="clerk", model=answer)], MemoryStore()) as app:
        batch = [item.run_id async for item in app.map("clerk", ["hello", "hello"], id="prompts")]
    derived = ["chat:2", make_fanout_id("hello", ["small", "large"]), *batch]
    own = (None, "r1", make_id(), "fanout-2026", "report.2026-11", f"{make_id()}.pdf")
    for accepted, run_ids in ((ann, own), (LOCAL_PRINCIPAL, derived), (one, ["chat:1"])):
        for run_id in run_ids:
            accepted.check_new_id(run_id)
    for refused, run_ids in ((ann, [*derived, "chat:1"]), (one, derived)):
        for run_id in run_ids:
            with pytest.raises(InvalidRunId):
                refused.check_new_id(run_id)


async def answer(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    return Reply(text="done")


def test_a_listing_is_limited_to_the_caller_unless_the_principal_sees_more() -> None:
    asked = RunFilter(agent_name="clerk")
    ann, one = Principal(caller_id="ann"), Principal(caller_id="ann", run_id="r1")
    assert restrict_filter(asked, ann) == RunFilter(agent_name="clerk", caller_id="ann")
    assert restrict_filter(asked, LOCAL_PRINCIPAL) == restrict_filter(asked, one) == asked
    assert restrict({"agent": "clerk"}, ann) == {"agent": "clerk", "caller": "ann"}
    assert restrict({"caller": "ann"}, ann) == {"caller": "ann"}
    assert restrict({"caller": "bob"}, ann) == {"status": []}, "no run"
    assert restrict({"caller": "bob"}, LOCAL_PRINCIPAL) == {"caller": "bob"}
