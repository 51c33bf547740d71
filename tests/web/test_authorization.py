"""Every operation for the owner of a run, another user, an operator, a token and an anonymous client."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.web.conftest import Site
from tests.web.site import make_agents
from tests.web.test_api import check_problem, fetch_result, submit, wait_for_status

from holdfast.app import App
from holdfast.config import WorkerSettings
from holdfast.web.api import make_api
from holdfast.web.api.application import OPERATIONS
from holdfast.web.errors import AddressInUse
from holdfast.web.server import serve_locally


class Request(NamedTuple):
    """A request that the owner of the run `owned` may send."""

    method: str
    path: str
    scope: str
    body: Any = None

    async def send(self, client: httpx.AsyncClient, run_id: str = "owned", **headers: str) -> httpx.Response:
        return await client.request(
            self.method,
            self.path.format(run_id=run_id, agent="talker", key="owned", turn_id="m1"),
            json=self.body,
            headers=headers,
        )


#: All operations on one run. The run waits for a person, and is left as it is by requests that are refused.
ON_A_RUN = [
    Request("GET", "/runs/{run_id}", "read"),
    Request("GET", "/runs/{run_id}/result", "read"),
    Request("GET", "/runs/{run_id}/events", "read"),
    Request("POST", "/runs/{run_id}/messages", "send", {"text": "hello"}),
    Request("POST", "/runs/{run_id}/signals", "send", {"name": "go"}),
    Request("POST", "/runs/{run_id}/answers", "answer", {"kind": "deny", "call_id": "c9"}),
    Request("POST", "/runs/{run_id}/cancel", "control"),
    Request("POST", "/runs/{run_id}/resume", "control"),
    Request("POST", "/runs/{run_id}/unpark", "control", {}),
    Request("POST", "/runs/{run_id}/fork", "start", {"at_step": 99}),
    Request("GET", "/runs/{run_id}/pick", "read"),
    Request("POST", "/runs/{run_id}/pick", "answer", {"result": ""}),
]
#: All operations on one conversation. Another user with the same key has a conversation of their own.
ON_A_CONVERSATION = [
    Request("GET", "/conversations/{agent}/{key}", "read"),
    Request("GET", "/conversations/{agent}/{key}/turns/{turn_id}", "read"),
    Request("POST", "/conversations/{agent}/{key}/messages", "send", {"content": "hello"}),
    Request("POST", "/conversations/{agent}/{key}/fork", "start", {"at_turn": 1, "key": "copy"}),
    Request("DELETE", "/conversations/{agent}/{key}", "control"),
]
OTHERS = [
    Request("GET", "/pending", "read"),
    Request("GET", "/conversations", "read"),
    Request("GET", "/runs", "read"),
    Request("POST", "/runs", "start", {"agent": "clerk", "input": "note"}),
]


def name_request(request: Request) -> str:
    return f"{request.method} {request.path}"


def test_the_table_has_every_operation() -> None:
    listed = {(each.method, each.path): each.scope for each in ON_A_RUN + ON_A_CONVERSATION + OTHERS}
    assert listed == {(each.method, each.path): each.scope for each in OPERATIONS if each.scope is not None}
    assert [each.path for each in OPERATIONS if each.scope is None] == ["/calls/{token}"]


@pytest.fixture
async def owned(site: Site, ann: httpx.AsyncClient) -> AsyncIterator[str]:
    """A run of Ann's that waits for an approval."""
    await submit(ann, "owned", "pay")
    await wait_for_status(ann, "owned", "waiting")
    yield "owned"
    assert (await ann.get("/runs/owned")).json()["status"] == "waiting", "a refused request changed the run"


@pytest.mark.parametrize("request_", ON_A_RUN + OTHERS, ids=name_request)
async def test_a_request_without_credentials_is_refused(site: Site, owned: str, request_: Request) -> None:
    async with site.client("") as anonymous:
        response = await request_.send(anonymous)
        assert response.headers["www-authenticate"] == "Bearer"
        check_problem(response, 401, "NotAuthenticated")
    async with site.client("", authorization="Bearer forged.forged") as forger:
        check_problem(await request_.send(forger), 401, "NotAuthenticated")


@pytest.mark.parametrize("request_", ON_A_RUN, ids=name_request)
async def test_the_run_of_another_user_does_not_exist(site: Site, owned: str, request_: Request) -> None:
    async with site.client("bob") as bob:
        theirs = await request_.send(bob)
        missing = await request_.send(bob, run_id="missing")
        check_problem(theirs, 404, "RunNotFound")
        assert theirs.text == missing.text.replace("missing", "owned"), "the response tells that the run exists"


@pytest.mark.parametrize("request_", ON_A_CONVERSATION, ids=name_request)
async def test_the_conversation_of_another_user_does_not_exist(
    site: Site, ann: httpx.AsyncClient, request_: Request
) -> None:
    await ann.post("/conversations/talker/owned/messages", json={"content": "hi", "id": "m1"})
    async with site.client("bob") as bob, site.client("") as anonymous:
        theirs = await request_.send(bob)
        if request_.path.endswith("messages"):  # he begins one of his own with the same key
            assert theirs.json()["run_id"] == "chat:talker:bob.owned"
            assert (await bob.delete("/conversations/talker/owned")).status_code == 204
        else:
            check_problem(theirs, 404, "RunNotFound")
        check_problem(await request_.send(anonymous), 401, "NotAuthenticated")
        token = site.issue_token("chat:talker:other", "read", "send", "start", "control")
        check_problem(
            await request_.send(anonymous, authorization=f"Bearer {token}"),
            *((403, "Forbidden") if request_.path.endswith("fork") else (404, "RunNotFound")),
        )
    [turn] = (await ann.get("/conversations/talker/owned")).json()["turns"]
    assert turn["turn_id"] == "m1"


@pytest.mark.parametrize("request_", ON_A_RUN + ON_A_CONVERSATION + OTHERS, ids=name_request)
async def test_a_request_needs_its_scope(site: Site, owned: str, request_: Request) -> None:
    other = " ".join({"read", "send", "answer", "start", "control"} - {request_.scope})
    async with site.client("ann", **{"x-scopes": other}) as limited:
        check_problem(await request_.send(limited), 403, "Forbidden")


@pytest.mark.parametrize("request_", ON_A_RUN, ids=name_request)
async def test_a_token_opens_its_own_run_only(
    site: Site, owned: str, ann: httpx.AsyncClient, request_: Request
) -> None:
    await submit(ann, "owned-too", "note")
    token = site.issue_token("owned-too", "read", "send", "answer", "start", "control")
    async with site.client("", authorization=f"Bearer {token}") as browser:
        check_problem(await request_.send(browser), 404, "RunNotFound")
        [run] = (await browser.get("/runs")).json()["runs"]
        assert run["run_id"] == "owned-too"
        check_problem(await OTHERS[-1].send(browser), 403, "Forbidden")


async def test_a_token_to_read_does_not_send(site: Site, owned: str) -> None:
    async with site.client("") as browser:
        query = {"token": site.issue_token(owned, "read")}
        assert (await browser.get("/runs/owned", params=query)).json()["run_id"] == "owned"
        bearer = {"authorization": f"Bearer {query['token']}"}
        response = await browser.post("/runs/owned/messages", json={"text": "x"}, headers=bearer)
        check_problem(response, 403, "Forbidden")


async def test_an_operator_sees_all_runs_and_a_user_their_own(site: Site, owned: str) -> None:
    async with site.client("operator") as operator, site.client("bob") as bob:
        await submit(bob, "bobs", "note")
        assert (await operator.get("/runs/owned")).status_code == 200
        assert {"owned", "bobs"} <= {run["run_id"] for run in (await operator.get("/runs?limit=200")).json()["runs"]}
        for query in ("", "?caller=ann", "?caller=bob", "?status=waiting"):
            listed = (await bob.get(f"/runs{query}")).json()["runs"]
            assert all(run["caller"] == "bob" for run in listed)


async def test_the_id_of_another_users_run_is_taken(site: Site, owned: str) -> None:
    async with site.client("bob") as bob:
        for prompt in ("pay", "another prompt"):
            body = {"agent": "clerk", "input": prompt}
            response = await bob.post("/runs", json=body, headers={"idempotency-key": owned})
            assert "clerk" not in check_problem(response, 409, "RunExists")


@pytest.mark.parametrize("run_id", ["owned:0123456789abcdef0123", "chat:talker:ann.next", "schedule:report:1:2"])
async def test_a_user_does_not_choose_an_id_that_holdfast_derives_for_others(
    site: Site, owned: str, run_id: str
) -> None:
    async with site.client("bob") as bob, site.client("operator") as operator:
        body = {"agent": "clerk", "input": "note"}
        check_problem(await bob.post("/runs", json=body, headers={"idempotency-key": run_id}), 422, "InvalidRunId")
        await submit(bob, "bobs", "note")
        await fetch_result(bob, "bobs")
        fork = {"at_step": 1, "run_id": run_id}
        check_problem(await bob.post("/runs/bobs/fork", json=fork), 422, "InvalidRunId")
        check_problem(await operator.get(f"/runs/{run_id}"), 404, "RunNotFound")
        await submit(operator, run_id, "note")


@pytest.mark.parametrize("request_", [each for each in ON_A_RUN + OTHERS if each.method == "POST"], ids=name_request)
async def test_a_page_of_another_origin_changes_nothing(
    site: Site, owned: str, ann: httpx.AsyncClient, request_: Request
) -> None:
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}, {"origin": "null"}):
        check_problem(await request_.send(ann, **headers), 403, "Forbidden")


async def test_allowed_origins_get_cors_headers_and_others_do_not(site: Site, ann: httpx.AsyncClient) -> None:
    body = {"agent": "clerk", "input": "note"}
    chat = {"origin": "https://chat.example", "sec-fetch-site": "cross-site"}
    response = await ann.post("/runs", json=body, headers=chat)
    assert response.status_code == 202
    assert response.headers["access-control-allow-origin"] == "https://chat.example"
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    assert (await ann.options("/runs", headers={**preflight, **chat})).status_code == 200
    evil = await ann.options("/runs", headers={**preflight, "origin": "http://evil.example"})
    assert "access-control-allow-origin" not in evil.headers
    assert (
        "access-control-allow-origin" not in (await ann.get("/runs", headers={"origin": "http://evil.example"})).headers
    )


async def test_without_authorize_only_clients_of_a_unix_socket_are_served(tmp_path: Path) -> None:
    app = App(make_agents(tmp_path), f"sqlite:{tmp_path / 'runs.db'}", worker=WorkerSettings(handle_signals=False))
    path = tmp_path / "api.sock"
    api = make_api(app)
    async with app, serve_locally(api, 0) as url, serve_locally(api, 0, path=path):
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            for place in ("/runs", "/runs/local-1", "/openapi.json"):
                check_problem(await client.get(place), 403, "Forbidden")
            check_problem(await client.post("/calls/x", json={}), 403, "Forbidden")
        assert path.stat().st_mode & 0o777 == 0o600
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(base_url="http://local", transport=transport) as local:
            await submit(local, "local-1", "note")
            assert (await fetch_result(local, "local-1")).json()["output"] == "did | note"
            check_problem(await local.get("/runs", headers={"x-forwarded-for": "192.0.2.7"}), 403, "Forbidden")
            with pytest.raises(AddressInUse):
                await serve_locally(api, 0, path=path).__aenter__()
    assert not path.exists()
