"""Requests at their limits, and the responses to errors, without a server of their own."""

import asyncio
import logging
import os
import socket
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import apsw
import httpx
import pytest
from starlette import types as asgi
from starlette.requests import Request
from tests.scripted_model import ScriptedModel
from tests.web.site import make_agents

from holdfast import Agent, ApprovalRequest, Reply, ToolCall, tool
from holdfast.app import App
from holdfast.batteries.schedule import JobNotFound
from holdfast.checkpoint import errors as stored
from holdfast.core import Message, ToolSchema
from holdfast.core import errors as core
from holdfast.core.run.run_events import Event
from holdfast.core.run.waiting import RunWaiting
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.mailing import NotWaiting
from holdfast.stores.memory import MemoryStore
from holdfast.web.api import make_api
from holdfast.web.api.application import OPERATIONS, make_openapi
from holdfast.web.api.problems import get_status
from holdfast.web.auth import LOCAL_PRINCIPAL, Principal, check_decider, find_visible
from holdfast.web.errors import AddressInUse, Forbidden, NotAuthenticated, RequestError
from holdfast.web.server import serve_locally

MIB = 1024 * 1024

USERS = {
    "operator": LOCAL_PRINCIPAL,
    "ann": Principal(caller_id="ann"),
    "bob": Principal(caller_id="bob"),
    "of r1": Principal(caller_id="", run_id="r1"),
    "starter": Principal(caller_id="starter", sees_all=True, scopes={"start"}),
}


#: Errors that the authorize function of a host raises.
ERRORS: dict[str, Exception] = {
    "500": AddressInUse("a host and a port"),
    "503": stored.StoreUnavailable("a host and a port"),
    "409": stored.RunDamaged("r1", "a name of a file"),
    "422": core.DefinitionError("a setting"),
    "unexpected": ValueError("a host and a port"),
}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    async with App(make_agents(tmp_path), f"sqlite:{tmp_path / 'runs.db'}", worker=False) as app:
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    """A client that is an operator, or the user of the header `x-user`."""

    def authorize(request: Request) -> Principal | None:
        error = ERRORS.get(request.headers.get("x-error", ""))
        if error is not None:
            raise error
        return USERS.get(request.headers.get("x-user", "operator"))

    transport = httpx.ASGITransport(make_api(app, authorize=authorize), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        yield client


def problem(response: httpx.Response) -> tuple[int, str, str]:
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code
    return response.status_code, body["type"], body["title"]


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (stored.RunNotFound, 404),
        (stored.TurnNotFound, 404),
        (JobNotFound, 404),
        (NotWaiting, 404),
        (stored.InvalidCursor, 422),
        (core.DefinitionError, 422),
        (core.PayloadError, 422),
        (stored.StoreUnavailable, 503),
        (stored.StoreClosed, 503),
        (core.RunInterrupted, 503),
        (core.NotDurable, 503),
        (stored.StoreError, 500),
        (stored.RunExists, 409),
        (core.RunAlreadyRunning, 409),
        (stored.RunConflict, 409),
        (core.RunFailed, 409),
        (core.RunCancelled, 409),
        (core.RunParked, 409),
        (RunWaiting, 409),
        (AddressInUse, 500),
        (RequestError, 400),
        (NotAuthenticated, 401),
        (Forbidden, 403),
    ],
)
def test_each_error_has_its_status(kind: type[HoldfastError], status: int) -> None:
    assert get_status(kind.__new__(kind)) == status


async def test_the_text_of_a_server_error_goes_to_the_log_only(
    client: httpx.AsyncClient, app: App, caplog: pytest.LogCaptureFixture
) -> None:
    assert app.store is not None
    await app.store.close()
    with caplog.at_level(logging.WARNING, "holdfast.web"):
        response = await client.get("/runs/r1")
    assert problem(response) == (503, "urn:holdfast:StoreClosed", "Store closed")
    assert response.json()["detail"] == "the server or its store is not available at present: try again"
    assert response.headers["retry-after"] == "2"
    assert [message.partition(": ")[0] for message in caplog.messages] == ["GET /runs/r1"]
    await app.store.open()
    caplog.clear()
    response = await client.get("/runs/r1")
    assert problem(response) == (404, "urn:holdfast:RunNotFound", "Run not found")
    assert "retry-after" not in response.headers
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("name", "status", "title", "detail", "is_logged"),
    [
        ("500", 500, "Address in use", "the server could not process the request: its log says why", True),
        ("503", 503, "Store unavailable", "the server or its store is not available at present: try again", True),
        ("409", 409, "Run damaged", "a name of a file", True),
        ("422", 422, "Definition error", "a setting", False),
        (
            "unexpected",
            500,
            "Internal Server Error",
            "the server could not process the request: its log says why",
            False,
        ),
    ],
)
async def test_errors_are_problems_and_those_of_the_server_are_logged(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, name: str, status: int, title: str, detail: str,
    is_logged: bool,
) -> None:  # fmt: skip
    with caplog.at_level(logging.WARNING, "holdfast.web"):
        response = await client.get("/runs", headers={"x-error": name})
    code, kind, found = problem(response)
    assert (code, found) == (status, title)
    assert kind == ("about:blank" if name == "unexpected" else f"urn:holdfast:{type(ERRORS[name]).__name__}")
    assert detail in response.json()["detail"]
    assert ("holdfast rm --force" in response.json()["detail"]) == (name == "409")
    assert response.headers.get("retry-after") == ("2" if status == 503 else None)
    logged = [each for each in caplog.records if each.name == "holdfast.web"]
    assert bool(logged) == is_logged


async def test_a_request_without_credentials_names_the_scheme_of_credentials(client: httpx.AsyncClient) -> None:
    response = await client.get("/runs", headers={"x-user": "nobody"})
    assert problem(response) == (401, "urn:holdfast:NotAuthenticated", "Not authenticated")
    assert response.headers["www-authenticate"] == "Bearer"
    assert problem(await client.get("/no/such/path")) == (404, "about:blank", "Not Found")


async def test_a_wrong_method_is_answered_with_the_right_ones(client: httpx.AsyncClient) -> None:
    for method in ("HEAD", "DELETE"):
        response = await client.request(method, "/runs")
        assert response.status_code == 405
        assert set(response.headers["allow"].split(", ")) == {"GET", "POST"}


@pytest.mark.parametrize("path", ["/runs", "/calls/r1~token"])
async def test_a_page_of_another_origin_is_refused(client: httpx.AsyncClient, path: str) -> None:
    response = await client.post(path, json={}, headers={"origin": "http://evil.example"})
    assert problem(response) == (403, "urn:holdfast:Forbidden", "Forbidden")


async def test_only_the_allowed_origins_may_read_responses(app: App) -> None:
    for wrong in ("https://a.example", ["*"]):
        with pytest.raises(core.DefinitionError, match="give a list of origins, without a wildcard"):
            make_api(app, allowed_origins=wrong)
    api = make_api(app, authorize=lambda request: LOCAL_PRINCIPAL, allowed_origins=["https://a.example"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://api") as client:
        for origin, allowed in (("https://a.example", "https://a.example"), ("https://b.example", None)):
            response = await client.get("/runs", headers={"origin": origin})
            assert response.headers.get("access-control-allow-origin") == allowed
        posted = await client.post(
            "/runs",
            json={"agent": "clerk", "input": "note"},
            headers={"origin": "https://a.example", "sec-fetch-site": "cross-site"},
        )
        assert posted.status_code == 202


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_body_has_at_most_8_mib(client: httpx.AsyncClient, is_declared: bool) -> None:
    async def chunks(body: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(body), MIB):
            yield body[start : start + MIB]

    async def send(size: int) -> httpx.Response:
        body = b'{"agent": "clerk", "input": ""}'.ljust(size)
        headers = {"content-type": "application/json"}
        return await client.post("/runs", content=body if is_declared else chunks(body), headers=headers)

    assert (await send(8 * MIB)).status_code == 202
    response = await send(8 * MIB + 1)
    assert problem(response) == (413, "urn:holdfast:BodyTooLarge", "Body too large")


@pytest.mark.parametrize(("type_", "is_json"), [
    ("application/json", True), ("Application/JSON; charset=utf-8", True), ("application/cloudevents+json", True),
    ("text/plain", False), ("", False),
])  # fmt: skip
async def test_a_body_is_declared_as_some_json(client: httpx.AsyncClient, type_: str, is_json: bool) -> None:
    body = b'{"agent": "clerk", "input": "note"}'
    response = await client.post("/runs", content=body, headers={"content-type": type_})
    assert response.status_code == (202 if is_json else 415)


@pytest.mark.parametrize(("limit", "status"), [
    ("1", 200), ("200", 200), ("000000001", 200), ("0000000001", 422), ("0", 422), ("201", 422), ("-1", 422), ("", 422),
    ("9" * 5_000, 422),
])  # fmt: skip
async def test_a_page_has_1_to_200_runs(client: httpx.AsyncClient, limit: str, status: int) -> None:
    assert (await client.get("/runs", params={"limit": limit})).status_code == status


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        ("label=x", "label is 'x': write NAME=VALUE"),
        ("label=a=b&label=x", "label is 'x': write NAME=VALUE"),
        ("since=today", "since is 'today': write a time such as 2026-01-31T12:00:00Z"),
        ("limit=none", "limit is 'none': give a number from 1 to 200"),
    ],
)
async def test_a_parameter_that_is_not_valid_is_named(client: httpx.AsyncClient, query: str, detail: str) -> None:
    response = await client.get(f"/runs?{query}")
    assert problem(response) == (422, "urn:holdfast:InvalidParameter", "Invalid parameter")
    assert response.json()["detail"] == detail


def test_the_numbers_of_the_description() -> None:
    paths = make_openapi(OPERATIONS)["paths"]

    def find(path: str, name: str) -> Any:
        [found] = [each for each in paths[path]["get"]["parameters"] if each["name"] == name]
        assert not found["required"]
        return found["schema"]

    assert find("/runs", "limit") == {"type": "integer", "minimum": 1, "maximum": 200, "default": 50}
    wait = {"type": "integer", "minimum": 1, "maximum": 50, "default": 20}
    assert find("/runs/{run_id}/result", "wait") == wait
    assert find("/runs", "since") == {"type": "string", "format": "date-time"}
    assert find("/runs", "agent") == {"type": "string"}
    described = {each["name"]: each["description"] for each in paths["/runs"]["get"]["parameters"]}
    assert described["label"].endswith(" NAME=VALUE. May be repeated.")
    assert described["status"].endswith(" May be repeated.")
    assert "NAME=VALUE" not in described["status"]
    assert "repeated" not in described["agent"]
    [run_id] = paths["/runs/{run_id}"]["get"]["parameters"]
    assert (run_id["in"], run_id["required"]) == ("path", True)
    assert paths["/runs"]["post"]["requestBody"]["required"]
    others = {"/calls/{token}": 204, "/runs/{run_id}/pick": 200}
    for operation in OPERATIONS:
        usual = {"GET": 200, "POST": 202, "DELETE": 204}[operation.method]
        expected = others.get(operation.path, usual)
        assert operation.status == expected
        described = paths[operation.path][operation.method.lower()]["responses"]
        assert next(iter(described)) == str(expected)
    events = paths["/runs/{run_id}/events"]["get"]["responses"]
    assert list(events) == ["200", "204", "default"]
    assert list(events["200"]["content"]) == ["text/event-stream"]
    assert "content" not in events["204"]
    assert list(events["default"]["content"]) == ["application/problem+json"]
    for path in ("/runs/{run_id}/result", "/conversations/{agent}/{key}/turns/{turn_id}"):
        assert list(paths[path]["get"]["responses"]) == ["200", "202", "default"]
    assert "x-scope" not in paths["/calls/{token}"]["post"]


def test_only_arrays_have_items() -> None:
    for schema in walk(make_openapi(OPERATIONS)):
        assert ("items" in schema) <= (schema.get("type") == "array"), schema


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(each)


def test_a_duration_is_described_as_seconds() -> None:
    schemas = make_openapi(OPERATIONS)["components"]["schemas"]
    seconds = {"type": "number", "description": "Seconds."}
    assert schemas["RunDetails"]["properties"]["elapsed"] == seconds
    assert schemas["RetryScheduled"]["properties"]["delay"] == {**seconds, "default": 0}


async def test_a_page_has_50_runs_unless_the_request_says_another_number(client: httpx.AsyncClient, app: App) -> None:
    for number in range(51):
        await app.submit("clerk", "note", run_id=f"r{number}")
    assert len((await client.get("/runs")).json()["runs"]) == 50
    assert len((await client.get("/runs", params={"limit": "51"})).json()["runs"]) == 51


async def test_a_token_for_one_run_lists_that_run_if_it_fits(client: httpx.AsyncClient, app: App) -> None:
    await app.submit("clerk", "note", run_id="r1", caller_id="ann")
    await app.submit("clerk", "note", run_id="r2", caller_id="ann")

    async def list_ids(user: str, **query: str) -> list[str]:
        response = await client.get("/runs", params=query, headers={"x-user": user})
        return sorted(run["run_id"] for run in response.json()["runs"])

    assert await list_ids("of r1") == ["r1"]
    assert await list_ids("of r1", status="queued") == ["r1"]
    assert await list_ids("of r1", status="done") == []
    assert await list_ids("of r1", agent="other", status="queued") == []
    assert await list_ids("operator", caller="ann") == ["r1", "r2"]
    assert await list_ids("ann", caller="ann") == ["r1", "r2"]
    assert await list_ids("bob", caller="ann") == []
    assert await list_ids("bob") == []


async def test_a_damaged_run_exists_for_those_who_would_see_it_whatever_it_says(
    client: httpx.AsyncClient, app: App, tmp_path: Path
) -> None:
    await app.submit("clerk", "note", run_id="r1", caller_id="ann")
    connection = apsw.Connection(str(tmp_path / "runs.db"))
    connection.execute("UPDATE runs SET labels = '{'")
    connection.close()
    for user, status in (("operator", 409), ("of r1", 409), ("ann", 404), ("bob", 404)):
        assert (await client.get("/runs/r1", headers={"x-user": user})).status_code == status


async def test_a_text_that_is_no_id_is_that_of_no_run(app: App) -> None:
    assert app.store is not None
    for text in ("", "r1\ud800", "x" * 2_000):
        with pytest.raises(stored.RunNotFound):
            await find_visible(app.store, LOCAL_PRINCIPAL, text)


@pytest.mark.parametrize(("user", "status"), [("operator", 200), ("ann", 403), ("of r1", 403), ("starter", 403)])
async def test_metrics_are_for_those_who_see_all_runs(client: httpx.AsyncClient, user: str, status: int) -> None:
    response = await client.get("/metrics", headers={"x-user": user})
    assert response.status_code == status
    if status == 200:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_a_run_that_has_not_ended_is_answered_with_202(client: httpx.AsyncClient, app: App) -> None:
    await app.submit("clerk", "note", run_id="r1")
    response = await client.get("/runs/r1/result", params={"wait": "1"})
    assert (response.status_code, response.json()) == (202, {"run_id": "r1"})
    assert "retry-after" not in response.headers
    assert response.headers["content-type"] == "application/json"


async def test_a_call_for_an_audience_is_answered_by_those_who_decide_for_it() -> None:
    @tool(approval=ApprovalRequest(audience="finance"))
    async def pay() -> str:
        return "paid"

    called = Reply(tool_calls=[ToolCall(id="c1", name="pay", arguments={})])
    agent = Agent(name="clerk", model=ScriptedModel(called, "done"), tools=[pay])
    users = {
        "legal": Principal(caller_id="ann", audiences={"legal"}),
        "finance": Principal(caller_id="ann", audiences={"finance"}),
        "ann": Principal(caller_id="ann"),
    }
    async with App([agent], MemoryStore()) as app:
        api = make_api(app, authorize=lambda request: users[request.headers["x-user"]])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://api") as client:

            async def answer(user: str, call_id: str = "c1", digest: str | None = None) -> httpx.Response:
                body = {"kind": "approve", "call_id": call_id, "digest": digest}
                return await client.post("/runs/r1/answers", json=body, headers={"x-user": user})

            with pytest.raises(RunWaiting):
                await app.run("clerk", "pay", run_id="r1", caller_id="ann")
            pending = (await client.get("/pending", headers={"x-user": "ann"})).json()["calls"]
            assert [(call["run_id"], call["call_id"]) for call in pending] == [("r1", "c1")]
            refused = await answer("legal")
            assert problem(refused) == (403, "urn:holdfast:Forbidden", "Forbidden")
            assert refused.json()["detail"] == "call c1 of run r1 is for finance, and you do not decide for it"
            for user, call_id, digest in (
                ("finance", "c2", None), ("finance", "c1", "of another call"), ("ann", "c1", "of another call"),
            ):  # fmt: skip
                assert (await answer(user, call_id, digest)).status_code in (404, 409)
            assert app.store is not None
            expected = [("c1", None, pending[0]["digest"]), ("c1", "seen", "seen"), ("c2", None, "")]
            for call_id, seen, digest in expected:
                assert await check_decider(app.store, users["finance"], "r1", call_id, seen) == digest
            assert (await answer("finance", digest=pending[0]["digest"])).status_code == 202
            assert (await app.result("r1")).output == "done"


class HeldModel:
    """A model that answers when the test says so."""

    def __init__(self) -> None:
        self.asked, self.answered = asyncio.Event(), asyncio.Event()

    async def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        self.asked.set()
        await self.answered.wait()
        return Reply(text="hello")


async def test_a_stream_of_a_run_begins_at_once_although_nothing_is_new() -> None:
    model = HeldModel()
    async with App([Agent(name="talker", model=model)], MemoryStore()) as app:
        api = make_api(app, authorize=lambda request: LOCAL_PRINCIPAL)
        await app.submit("talker", "hi", run_id="r1")
        await model.asked.wait()
        cursors = [event.cursor async for event in take(app.events("r1")) if event.cursor is not None]
        async with serve_locally(api, 0) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
            headers = {"last-event-id": cursors[-1]}
            try:
                async with client.stream("GET", "/runs/r1/events", headers=headers) as response:
                    assert response.status_code == 200
                    model.answered.set()
                    assert "event: end" in (await response.aread()).decode()
            finally:
                model.answered.set()


async def take(events: AsyncGenerator[Event]) -> AsyncIterator[Event]:
    """Return the events up to the first durable one."""
    async with aclosing(events):
        async for event in events:
            yield event
            if event.cursor is not None:
                return


async def test_a_turn_in_progress_has_no_end_yet() -> None:
    model = HeldModel()
    asked, answered = model.asked, model.answered
    async with App([Agent(name="talker", model=model)], MemoryStore()) as app:
        api = make_api(app, authorize=lambda request: LOCAL_PRINCIPAL)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://api") as client:
            path = "/conversations/talker/chat"
            await client.post(f"{path}/messages", json={"content": "hi", "id": "m1"})
            await asked.wait()
            [turn] = (await client.get(path)).json()["turns"]
            answered.set()
            assert (turn["turn_id"], turn["number"], turn["status"], turn["steps"]) == ("m1", 1, "running", 0)
            assert (turn["output"], turn["error"], turn["ended_at"]) == (None, "", None)
            ended = (await client.get(f"{path}/turns/m1")).json()
            assert (ended["status"], ended["steps"], ended["output"]) == ("done", 1, "hello")
            fork = {"at_turn": 1, "key": "chat"}
            taken = await client.post(f"{path}/fork", json=fork)
            assert problem(taken)[:2] == (409, "urn:holdfast:RunConflict")
            assert "conversation chat" in taken.json()["detail"]
            assert (await client.post(f"{path}/fork", json={**fork, "key": "other"})).status_code == 202


# -- servers on this machine ------------------------------------------------------------------------------------------


async def test_a_port_that_is_taken_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken_port = f"port {port} of 127.0.0.1 cannot be used: Address already in use; choose another one"
        with pytest.raises(AddressInUse, match=f"^{taken_port}$"):
            await serve_locally(_respond, port).__aenter__()
    with pytest.raises(AddressInUse, match=r"^port 0 of a\.invalid cannot be used: [A-Z][a-z -]+; choose another one$"):
        await serve_locally(_respond, 0, host="a.invalid").__aenter__()


async def test_a_server_does_not_believe_the_headers_of_a_proxy() -> None:
    seen: list[str] = []

    async def site(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["scheme"])
        await _respond(scope, receive, send)

    async with serve_locally(site, 0) as url, httpx.AsyncClient(trust_env=False) as client:
        await client.get(url, headers={"x-forwarded-proto": "https"})
    assert seen == ["http"]


async def test_a_path_that_is_too_long_for_a_socket_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(AddressInUse, match="cannot be used: AF_UNIX path too long; choose another one"):
        await serve_locally(_respond, 0, path=tmp_path / ("x" * 200)).__aenter__()


async def test_a_socket_that_another_process_has_removed_is_no_error_at_the_end(tmp_path: Path) -> None:
    async with serve_locally(_respond, 0, path=tmp_path / "api.sock"):
        (tmp_path / "api.sock").unlink()


async def test_a_socket_is_for_one_user_replaces_that_of_a_killed_process_and_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    mask = os.umask(0o022)
    try:
        async with serve_locally(_respond, 0, path=path) as served:
            assert served == str(path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
                assert (await client.get("/")).text == "here"
            with pytest.raises(AddressInUse, match=r"api\.sock cannot be used: Address already in use"):
                await serve_locally(_respond, 0, path=path).__aenter__()
        assert not path.exists()
        path.write_text("a file")
        with pytest.raises(AddressInUse):
            await serve_locally(_respond, 0, path=path).__aenter__()
        assert path.read_text() == "a file"
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(mask)


async def _respond(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"here"})


@pytest.mark.parametrize("path", ["/fleet/limits", "/api/runs", "/api/runs/r1/messages"])
async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error_of_the_server(app: App, path: str) -> None:
    sent: list[asgi.Message] = []
    received: list[asgi.Message] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> asgi.Message:
        return received.pop(0)

    async def send(message: asgi.Message) -> None:
        sent.append(message)

    scope: asgi.Scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"here"), (b"content-type", b"application/json")],
    }
    await app.web(authorize=lambda request: LOCAL_PRINCIPAL)(scope, receive, send)  # raises nothing
    assert [message["status"] for message in sent if message["type"] == "http.response.start"] == [400]
