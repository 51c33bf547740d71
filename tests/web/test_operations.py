"""Each operation of the API in this process: what it does, what it answers, and for whom the run does not exist."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from tests.scripted_model import ScriptedModel, call, tool_reply
from tests.web.test_authorization import ON_A_CONVERSATION, ON_A_RUN, name_request
from tests.web.test_authorization import Request as Operation
from tests.web.ui.journals import store_fanout, store_parked_run

from holdfast import Agent, App, RunWaiting, tool, wait_for
from holdfast.checkpoint.errors import RunNotFound
from holdfast.checkpoint.store import get_record
from holdfast.core.agents.waiting_tools import ask_person
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.run.messages import ToolCall, ToolResult
from holdfast.core.run.run_events import CallDecided, ToolReturned
from holdfast.stores.memory import MemoryStore
from holdfast.web.api import make_api
from holdfast.web.api.conversation_operations import post_message
from holdfast.web.api.operation import Context
from holdfast.web.auth import LOCAL_PRINCIPAL, Principal

USERS = {
    "operator": LOCAL_PRINCIPAL,
    "ann": Principal(caller_id="ann"),
    "bob": Principal(caller_id="bob"),
    "of r1": Principal(caller_id="", run_id="r1"),
    "of none": Principal(caller_id="", run_id="none"),
    "of chat": Principal(caller_id="guest", run_id="chat:talker:chat"),
}


def connect(app: App) -> httpx.AsyncClient:
    """Return a client that is Ann, or the user of the header `x-user`."""

    def authorize(request: Request) -> Principal | None:
        return USERS[request.headers.get("x-user", "ann")]

    transport = httpx.ASGITransport(make_api(app, authorize=authorize), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://api")


def read_problem(response: httpx.Response) -> tuple[int, str, str]:
    body = response.json()
    return response.status_code, body["type"].removeprefix("urn:holdfast:"), body["detail"]


@tool
async def note() -> str:
    """Write a line."""
    return "noted"


@tool(approval=True)
async def pay(amount: int = 1) -> str:
    """Pay, with approval."""
    return f"paid {amount}"


CALLS = (
    tool_reply(call("c0", "note")),
    tool_reply(call("c1", "pay", amount=7), call("c2", "pay"), call("c3", "ask_person", question="Why?")),
)


@pytest.fixture
async def app() -> AsyncIterator[App]:
    agents = [
        Agent(name="clerk", model=ScriptedModel(*CALLS, "done"), tools=[note, pay, ask_person]),
        Agent(
            name="waiter", model=ScriptedModel(tool_reply(call("c1", "wait_for", name="go")), "went"), tools=[wait_for]
        ),
        Agent(name="talker", model=ScriptedModel("one", "two", "three")),
    ]
    async with App(agents, MemoryStore()) as app:
        yield app


@pytest.fixture
async def client(app: App) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(app) as client:
        yield client


async def wait_for_person(app: App, run_id: str = "r1") -> None:
    with pytest.raises(RunWaiting):
        await app.run("clerk", "go", run_id=run_id, caller_id="ann")


@pytest.mark.parametrize("request_", ON_A_RUN, ids=name_request)
async def test_the_run_of_another_caller_does_not_exist_and_stays_as_it_is(
    app: App, client: httpx.AsyncClient, request_: Operation
) -> None:
    await wait_for_person(app)
    assert app.store is not None
    before = await get_record(app.store, "r1")
    for user in ("bob", "of none"):
        refused = await request_.send(client, "r1", **{"x-user": user})
        assert read_problem(refused) == (
            404,
            "RunNotFound",
            "no run r1 in this store: the id is wrong, or the run ended and was removed",
        )
    assert await get_record(app.store, "r1") == before


async def test_each_answer_reaches_its_call(app: App, client: httpx.AsyncClient) -> None:
    await wait_for_person(app)
    waiting = await client.get("/runs/r1/result")
    assert (waiting.status_code, waiting.headers["retry-after"]) == (202, "2")
    assert [each["call_id"] for each in waiting.json()["calls"]] == ["c1", "c2", "c3"]
    assert "turn_id" not in waiting.json()
    for answer in (
        {"kind": "approve", "call_id": "c1", "arguments": {"amount": 9}, "comment": "fine"},
        {"kind": "deny", "call_id": "c2", "reason": "too much"},
        {"kind": "value", "call_id": "c3", "value": {"why": "because"}},
    ):
        response = await client.post("/runs/r1/answers", json=answer)
        assert (response.status_code, response.json()) == (202, {"run_id": "r1"})
    await app.result("r1")
    done = (await client.get("/runs/r1/result")).json()
    assert (done["run_id"], done["output"], done["steps"]) == ("r1", "done", 3)
    events = [event async for event in app.events("r1")]
    results = {event.call_id: event.content for event in events if isinstance(event, ToolReturned)}
    assert results["c1"] == "paid 9"
    assert "too much" in str(results["c2"])
    assert results["c3"] == {"why": "because"}
    decided = {event.call_id: event.decision for event in events if isinstance(event, CallDecided)}
    assert {(each.by, each.via) for each in decided.values()} == {("ann", "http")}
    assert decided["c1"].comment == "fine"


async def test_mail_is_acknowledged_with_its_id(app: App, client: httpx.AsyncClient) -> None:
    with pytest.raises(RunWaiting):
        await app.run("waiter", "go", run_id="r1", caller_id="ann")
    sent = await client.post("/runs/r1/messages", json={"text": "hurry", "id": "m1"})
    assert (sent.status_code, sent.json()) == (202, {"run_id": "r1", "id": "m1"})
    sent = await client.post("/runs/r1/signals", json={"name": "go", "payload": 7, "id": "s1"})
    assert (sent.status_code, sent.json()) == (202, {"run_id": "r1", "id": "s1"})
    assert (await app.result("r1")).output == "went"
    events = [event async for event in app.events("r1")]
    assert [event.content for event in events if isinstance(event, ToolReturned)] == [7]
    assert "hurry" in str(events)


async def test_a_run_is_cancelled_resumed_and_forked() -> None:
    model = ScriptedModel(*CALLS, "done")
    agent = Agent(name="clerk", model=model, tools=[note, pay, ask_person])
    async with App([agent], MemoryStore(), worker=False) as app, connect(app) as client:
        await wait_for_person(app)
        for operation, status in (("cancel", "cancelled"), ("resume", "interrupted")):
            response = await client.post(f"/runs/r1/{operation}")
            assert (response.status_code, response.json()) == (202, {"run_id": "r1"})
            assert (await app.get("r1")).status == status
        body = {"at_step": 1, "run_id": "f1", "results": {"c0": "changed"}}
        refused = await client.post("/runs/r1/fork", json=body, headers={"x-user": "of r1"})
        assert read_problem(refused) == (
            403, "Forbidden", "this token is valid for one run or conversation: it cannot start another",
        )  # fmt: skip
        refused = await client.post("/runs/r1/fork", json={**body, "run_id": "f:1"})
        assert read_problem(refused)[:2] == (422, "InvalidRunId")
        forked = await client.post("/runs/r1/fork", json=body)
        assert (forked.status_code, forked.json()) == (202, {"run_id": "f1"})
        with pytest.raises(RunWaiting):
            await app.resume("f1")
        [result] = [each for each in model.requests[-1] if isinstance(each, ToolResult)]
        assert result.content == "changed"
        forked = await client.post("/runs/r1/fork", json={"at_step": 1, "edited": "another"})
        run_id = forked.json()["run_id"]
        assert run_id not in ("r1", "f1")
        assert (await app.get(run_id)).prompt == "another"


@pytest.mark.parametrize(
    ("resolution", "result"),
    [
        ({"kind": "result", "value": "by hand"}, "by hand"),
        ({"kind": "not_executed"}, "noted"),
        ({"kind": "unknown"}, UNKNOWN_OUTCOME),
        (None, UNKNOWN_OUTCOME),
    ],
)
async def test_a_call_in_doubt_gets_the_outcome_that_a_person_found(
    app: App, client: httpx.AsyncClient, resolution: dict[str, Any] | None, result: str
) -> None:
    await store_parked_run(app.store, "r1", call=ToolCall(id="p1", name="note", arguments={}))
    body = {} if resolution is None else {"resolutions": [{**resolution, "call_id": "p1"}]}
    released = await client.post("/runs/r1/unpark", json=body, headers={"x-user": "operator"})
    assert (released.status_code, released.json()) == (202, {"run_id": "r1"})
    async for event in app.events("r1"):
        if isinstance(event, ToolReturned):
            assert event.content == result
            return
    raise AssertionError("no call has returned")


async def test_a_person_picks_a_model_of_a_fan_out_or_a_run(app: App, client: httpx.AsyncClient) -> None:
    await store_fanout(app.store, "fan")
    await wait_for_person(app)
    as_operator = {"x-user": "operator"}
    refused = await client.post("/runs/fan/pick", json={"result": "fake:four"}, headers=as_operator)
    assert read_problem(refused) == (
        422, "DefinitionError", "'fake:four' is not a model of this fan-out: it has fake:one, fake:two, fake:three",
    )  # fmt: skip
    assert (await client.get("/runs/fan/pick", headers=as_operator)).json() == {"pick": None}
    for run_id, value, user in (("fan", "fake:two", "operator"), ("r1", "r1", "ann")):
        headers = {"x-user": user}
        picked = await client.post(f"/runs/{run_id}/pick", json={"result": value}, headers=headers)
        assert picked.status_code == 200
        pick = picked.json()["pick"]
        assert (pick["run_id"], pick["value"], pick["by"]) == (run_id, value, USERS[user].caller_id)
        assert (await client.get(f"/runs/{run_id}/pick", headers=headers)).json() == {"pick": pick}
        assert (await client.post(f"/runs/{run_id}/pick", json={"result": ""}, headers=headers)).json() == {
            "pick": None
        }
    refused = await client.post("/runs/r1/pick", json={"result": "fan"})
    assert read_problem(refused)[:2] == (404, "RunNotFound")


async def test_pending_calls_are_those_that_the_principal_may_see(app: App, client: httpx.AsyncClient) -> None:
    for run_id in ("r1", "r2"):
        await wait_for_person(app, run_id)

    async def list_pending(user: str, **query: str) -> list[tuple[str, str]]:
        response = await client.get("/pending", params=query, headers={"x-user": user})
        return sorted({(each["run_id"], each["tool"]) for each in response.json()["calls"]})

    both = [("r1", "ask_person"), ("r1", "pay"), ("r2", "ask_person"), ("r2", "pay")]
    assert await list_pending("operator") == await list_pending("ann") == both
    assert await list_pending("of r1") == both[:2]
    assert await list_pending("bob") == []
    assert await list_pending("ann", tool="pay") == [("r1", "pay"), ("r2", "pay")]
    assert await list_pending("ann", agent="waiter") == []
    refused = await client.get("/pending", headers={"x-user": "of none"})
    assert read_problem(refused)[:2] == (404, "RunNotFound")


async def test_an_id_is_taken_by_the_run_of_another_and_used_again_by_the_same_request(
    app: App, client: httpx.AsyncClient
) -> None:
    async def submit(user: str, run_id: str | None = "r1", prompt: str = "go") -> httpx.Response:
        headers = {"x-user": user} | ({} if run_id is None else {"idempotency-key": run_id})
        return await client.post("/runs", json={"agent": "waiter", "input": prompt}, headers=headers)

    for _ in range(2):
        accepted = await submit("ann")
        assert (accepted.status_code, accepted.json()) == (202, {"run_id": "r1"})
    assert (await submit("of r1")).json() == {"run_id": "r1"}
    assert (await app.get("r1")).caller == "ann"
    assert read_problem(await submit("ann", prompt="other"))[:2] == (409, "RunConflict")
    for prompt in ("go", "other"):
        assert read_problem(await submit("bob", prompt=prompt)) == (
            409, "RunExists", "run r1 already exists: choose another id",
        )  # fmt: skip
    for run_id in ("r2", None):
        assert read_problem(await submit("of r1", run_id)) == (
            403, "Forbidden", "this token is valid for one run or conversation: it cannot start another",
        )  # fmt: skip
    assert read_problem(await submit("ann", "a:b"))[:2] == (422, "InvalidRunId")
    new = (await submit("ann", None)).json()["run_id"]
    assert new not in ("r1", "")


async def test_the_events_of_an_ended_run_continue_after_a_cursor(app: App, client: httpx.AsyncClient) -> None:
    await app.run("talker", "hi", run_id="r1", caller_id="ann")
    cursors = [event.cursor async for event in app.events("r1") if event.cursor is not None]

    async def read_ids(last: str | None = None, after: str | None = None) -> list[str]:
        headers = {} if last is None else {"last-event-id": last}
        response = await client.get(
            "/runs/r1/events", headers=headers, params={} if after is None else {"after": after}
        )
        if response.status_code == 204:
            assert response.content == b""
            return []
        assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        first, *frames = response.text.split("\n\n")
        assert (first, frames[-2:]) == ("retry: 1000", ["event: end\ndata: {}", ""])
        return [frame.partition("\n")[0].removeprefix("id: ") for frame in frames if frame.startswith("id: ")]

    assert await read_ids() == cursors
    assert await read_ids(last=cursors[0]) == await read_ids(after=cursors[0]) == cursors[1:]
    assert await read_ids(last=cursors[-1]) == await read_ids(after=cursors[-1]) == []
    assert await read_ids(last=cursors[1], after=cursors[0]) == cursors[2:], "a browser that connects again is right"
    forged = await client.get("/runs/r1/events", params={"after": "forged"})
    assert read_problem(forged)[:2] == (422, "InvalidCursor")


# -- conversations ----------------------------------------------------------------------------------------------------

CHAT = "/conversations/talker/chat"


@pytest.mark.parametrize("request_", ON_A_CONVERSATION, ids=name_request)
async def test_a_token_for_another_run_finds_no_conversation(client: httpx.AsyncClient, request_: Operation) -> None:
    await client.post("/conversations/talker/owned/messages", json={"content": "hi", "id": "m1"})
    refused = await request_.send(client, **{"x-user": "of r1"})
    if request_.path.endswith("fork"):
        detail = "this token is valid for one run or conversation: it cannot start another"
        assert read_problem(refused) == (403, "Forbidden", detail)
    else:
        detail = "no conversation owned in this store: the id is wrong, or the run ended and was removed"
        assert read_problem(refused) == (404, "RunNotFound", detail)


async def test_a_conversation_from_its_first_message_to_its_end(app: App, client: httpx.AsyncClient) -> None:
    missing = "no conversation chat in this store: the id is wrong, or the run ended and was removed"
    assert read_problem(await client.get(CHAT)) == (404, "RunNotFound", missing)
    for number, output in ((1, "one"), (2, "two")):
        sent = await client.post(f"{CHAT}/messages", json={"content": f"say {output}", "id": f"m{number}"})
        assert (sent.status_code, sent.json()) == (202, {"run_id": "chat:talker:ann.chat", "turn_id": f"m{number}"})
        turn = (await client.get(f"{CHAT}/turns/m{number}")).json()
        assert (turn["turn_id"], turn["number"], turn["status"]) == (f"m{number}", number, "done")
        assert (turn["prompt"], turn["output"], turn["error"], turn["steps"]) == (f"say {output}", output, "", 1)
        assert turn["ended_at"] >= turn["began_at"]
    between = read_problem(await client.get("/runs/chat:talker:ann.chat/result"))
    assert between[:2] == (409, "ConversationIdle"), "it waits for its next message, and for no call"
    history = (await client.get(CHAT)).json()
    assert history["run_id"] == "chat:talker:ann.chat"
    assert [turn["output"] for turn in history["turns"]] == ["one", "two"]
    await app.submit("waiter", "go", run_id="r1", caller_id="ann")
    for query, expected in (({}, ["chat:talker:ann.chat"]), ({"agent": "waiter"}, []), ({"label": "a=b"}, [])):
        listed = (await client.get("/conversations", params=query)).json()
        assert [run["run_id"] for run in listed["runs"]] == expected
    erased = await client.delete(CHAT)
    assert (erased.status_code, erased.content) == (204, b"")
    assert "content-type" not in erased.headers
    assert (await client.get("/conversations")).json()["runs"] == []


async def test_a_fork_of_a_conversation_has_its_turns_and_its_caller(app: App, client: httpx.AsyncClient) -> None:
    for number in (1, 2):
        await client.post(f"{CHAT}/messages", json={"content": "hi", "id": f"m{number}"})
        await client.get(f"{CHAT}/turns/m{number}")
    forked = await client.post(f"{CHAT}/fork", json={"at_turn": 1, "key": "copy"})
    assert (forked.status_code, forked.json()) == (202, {"run_id": "chat:talker:ann.copy"})
    turns = (await client.get("/conversations/talker/copy")).json()["turns"]
    assert [turn["turn_id"] for turn in turns] == ["m1"]
    assert (await app.get("chat:talker:ann.copy")).caller == "ann"
    taken = await client.post(f"{CHAT}/fork", json={"at_turn": 1, "key": "copy"})
    status, kind, detail = read_problem(taken)
    assert (status, kind) == (409, "RunConflict")
    assert "conversation copy" in detail
    assert "ann.copy" not in detail
    by_operator = await client.post(
        "/conversations/talker/ann.chat/fork", json={"at_turn": 2, "key": "ann.third"}, headers={"x-user": "operator"}
    )
    assert by_operator.json() == {"run_id": "chat:talker:ann.third"}
    assert (await app.get("chat:talker:ann.third")).caller == "ann", "the caller of the conversation"


async def test_a_token_for_a_conversation_begins_it(app: App, client: httpx.AsyncClient) -> None:
    headers = {"x-user": "of chat"}
    sent = await client.post(f"{CHAT}/messages", json={"content": "hi", "id": "m1"}, headers=headers)
    assert sent.json() == {"run_id": "chat:talker:chat", "turn_id": "m1"}
    assert (await app.get("chat:talker:chat")).caller == "guest"
    refused = await client.post("/conversations/talker/other/messages", json={"content": "hi"}, headers=headers)
    assert read_problem(refused)[:2] == (404, "RunNotFound")
    assert (await client.post(f"{CHAT}/messages", json={"content": []}, headers=headers)).status_code == 422


async def test_a_conversation_that_another_caller_began_meanwhile_gets_no_message(
    app: App, client: httpx.AsyncClient
) -> None:
    await client.post(f"{CHAT}/messages", json={"content": "hi", "id": "m1"})
    context = Context(app, USERS["bob"], Request({"type": "http"}), None)
    with pytest.raises(RunNotFound):
        await post_message(context, app.conversation("talker", "ann.chat"), "from bob")
    await client.get(f"{CHAT}/turns/m1")
    assert [turn["turn_id"] for turn in (await client.get(CHAT)).json()["turns"]] == ["m1"]


async def test_an_unknown_turn_is_named_by_the_key_of_its_conversation(client: httpx.AsyncClient) -> None:
    await client.post(f"{CHAT}/messages", json={"content": "hi", "id": "m1"})
    status, kind, detail = read_problem(await client.get(f"{CHAT}/turns/m9"))
    assert (status, kind) == (404, "TurnNotFound")
    assert "conversation chat" in detail
    assert "m9" in detail


async def test_an_app_without_a_store_serves_no_runs() -> None:
    async with App([], None) as app, connect(app) as client:
        detail = "this App has no store: give it one to serve its runs"
        assert read_problem(await client.get("/runs")) == (422, "DefinitionError", detail)
