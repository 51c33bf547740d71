"""Conversations over HTTP."""

import httpx
import pytest
from tests.scripted_model import ScriptedModel
from tests.web.conftest import Site
from tests.web.site import authorize
from tests.web.test_api import check_problem, wait_for_status

from holdfast import Agent, App, RunWaiting
from holdfast.checkpoint.errors import RunNotFound, TurnConflict
from holdfast.client import AsyncClient, Client
from holdfast.core.run.run_events import TurnFinished
from holdfast.core.run.turns import make_conversation_id
from holdfast.runtime.operations.mailing import MAX_MAIL_BYTES
from holdfast.stores.memory import MemoryStore
from holdfast.web.api import make_api
from holdfast.web.api.conversation_operations import scope_key
from holdfast.web.auth import Principal
from holdfast.web.server import serve_locally

CHAT = "/conversations/talker/chat-1"


async def test_messages_are_answered_turn_by_turn(ann: httpx.AsyncClient) -> None:
    for number, text in enumerate(("hello", "again"), start=1):
        for _ in range(2):  # the same id is the same message
            sent = await ann.post(f"{CHAT}/messages", json={"content": text, "id": f"m{number}"})
            assert (sent.status_code, sent.json()) == (
                202,
                {"run_id": "chat:talker:ann.chat-1", "turn_id": f"m{number}"},
            )
        turn = (await ann.get(f"{CHAT}/turns/m{number}")).json()
        assert (turn["status"], turn["output"], turn["number"]) == ("done", f"you said {text}", number)
    assert "has no message 'm9'" in check_problem(await ann.get(f"{CHAT}/turns/m9"), 404, "TurnNotFound")
    history = (await ann.get(CHAT)).json()
    assert [turn["prompt"] for turn in history["turns"]] == ["hello", "again"]
    listed = (await ann.get("/conversations")).json()["runs"]
    assert "chat:talker:ann.chat-1" in [run["run_id"] for run in listed]
    conflict = await ann.post(f"{CHAT}/messages", json={"content": "other", "id": "m1"})
    check_problem(conflict, 409, "TurnConflict")


async def test_a_turn_waits_for_an_approval_and_fails_alone(site: Site, ann: httpx.AsyncClient) -> None:
    chat = "/conversations/talker/chat-2"
    await ann.post(f"{chat}/messages", json={"content": "pay", "id": "m1"})
    waiting = await ann.get(f"{chat}/turns/m1")
    assert (waiting.status_code, waiting.json()["turn_id"], waiting.headers["retry-after"]) == (202, "m1", "2")
    [call] = waiting.json()["calls"]
    answer = {"kind": "approve", "call_id": call["call_id"]}
    assert (await ann.post("/runs/chat:talker:ann.chat-2/answers", json=answer)).status_code == 202
    while (turn := await ann.get(f"{chat}/turns/m1")).status_code == 202:  # the answer is being read
        pass
    assert turn.json()["output"] == "you said pay"
    assert site.read_ledger("chat:talker:ann.chat-2") == ["pay 1"]
    await ann.post(f"{chat}/messages", json={"content": "fail", "id": "m2"})
    assert "no answer" in check_problem(await ann.get(f"{chat}/turns/m2"), 409, "TurnFailed")
    await ann.post(f"{chat}/messages", json={"content": "on", "id": "m3"})
    assert (await ann.get(f"{chat}/turns/m3")).json()["output"] == "you said on"


async def test_a_conversation_is_forked_and_erased(ann: httpx.AsyncClient) -> None:
    chat = "/conversations/talker/chat-3"
    await ann.post(f"{chat}/messages", json={"content": "one", "id": "m1"})
    await ann.get(f"{chat}/turns/m1")
    forked = await ann.post(f"{chat}/fork", json={"at_turn": 1, "edited": "two", "key": "chat-4"})
    assert forked.json() == {"run_id": "chat:talker:ann.chat-4"}
    assert (await ann.get("/conversations/talker/chat-4/turns/m1")).json()["output"] == "you said two"
    taken = await ann.post(f"{chat}/fork", json={"at_turn": 1, "key": "chat-4"})
    check_problem(taken, 409, "RunConflict")
    assert (await ann.delete(chat)).status_code == 204
    check_problem(await ann.get(chat), 404, "RunNotFound")


#: Messages that are refused for their content, their id, or their size.
REFUSED = [
    {"content": []},
    {"content": [7]},
    {"content": "hello", "id": "answer:c1"},
    {"content": "x" * (MAX_MAIL_BYTES + 1)},
]


async def test_a_refused_message_leaves_no_conversation(ann: httpx.AsyncClient) -> None:
    chat = "/conversations/talker/chat-8"
    for message in REFUSED:
        assert (await ann.post(f"{chat}/messages", json=message)).status_code == 422
        check_problem(await ann.get(chat), 404, "RunNotFound")
    await ann.post(f"{chat}/messages", json={"content": "hello", "id": "m1"})
    await ann.get(f"{chat}/turns/m1")
    edited = "x" * (MAX_MAIL_BYTES + 1)
    refused = await ann.post(f"{chat}/fork", json={"at_turn": 1, "edited": edited, "key": "chat-9"})
    check_problem(refused, 422, "PayloadError")
    check_problem(await ann.get("/conversations/talker/chat-9"), 404, "RunNotFound")


async def test_a_client_converses(site: Site) -> None:
    token = site.issue_token("chat:talker:chat-6", "read", "send", "control")
    async with AsyncClient(site.url, token=token) as client:
        chat = client.conversation("talker", "chat-6")
        turn = await chat.send("hello", id="m1")
        assert (turn.status, turn.output, turn.number) == ("done", "you said hello", 1)
        assert (await chat.send("hello", id="m1")).number == 1, "the same id is the same message"
        with pytest.raises(TurnConflict):
            await chat.post("other", id="m1")
        with pytest.raises(RunWaiting) as waiting:
            await chat.send("pay")
        assert [call.tool for call in waiting.value.calls] == ["pay"]
        assert [turn.prompt for turn in await chat.history()] == ["hello", "pay"]
        await chat.erase()
        with pytest.raises(RunNotFound):
            await chat.history()


def test_a_client_without_an_event_loop_converses(site: Site) -> None:
    with Client(site.url, token=site.issue_token("chat:talker:chat-7", "read", "send", "control")) as client:
        chat = client.conversation("talker", "chat-7")
        assert chat.send("hello").output == "you said hello"
        assert chat.result(chat.post("again")).output == "you said again"
        assert [turn.number for turn in chat.history()] == [1, 2]
        chat.erase()


async def test_the_events_of_a_conversation_continue_between_turns(site: Site) -> None:
    token = site.issue_token("chat:talker:chat-5", "read", "send", "control")
    async with site.client("", authorization=f"Bearer {token}") as browser:
        await browser.post("/conversations/talker/chat-5/messages", json={"content": "one", "id": "m1"})
        finished = []
        async with AsyncClient(site.url, token=token) as client:
            async for event in client.events("chat:talker:chat-5"):
                if isinstance(event, TurnFinished):
                    finished.append(event)
                    if len(finished) == 1:
                        await browser.post("/conversations/talker/chat-5/messages", json={"content": "two"})
                    else:
                        break
        assert [event.output for event in finished] == ["you said one", "you said two"]
        await wait_for_status(browser, "chat:talker:chat-5", "waiting")


async def test_two_callers_with_the_same_key_have_conversations_of_their_own() -> None:
    app = App([Agent(name="talker", model=ScriptedModel())], MemoryStore(), worker=False)
    async with (
        app,
        serve_locally(make_api(app, authorize=authorize), 0) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        for user in ("ann", "bob"):
            path, headers = "/conversations/talker/new", {"x-user": user}
            sent = await client.post(f"{path}/messages", json={"content": user, "id": "m1"}, headers=headers)
            assert sent.json() == {"run_id": f"chat:talker:{user}.new", "turn_id": "m1"}
            assert (await app.get(f"chat:talker:{user}.new")).caller == user
            [listed] = (await client.get("/conversations", headers=headers)).json()["runs"]
            # The key of a listing names the same conversation.
            stored = await client.get(f"/conversations/talker/{listed['conversation']}", headers=headers)
            assert stored.json()["run_id"] == f"chat:talker:{user}.new"


def test_no_two_callers_share_a_stored_key() -> None:
    callers = ("a", "a.b", "a%2Eb", "a:b", "é", "a/b")
    stored = {scope_key(Principal(caller_id=each), "talker", key) for each in callers for key in ("b.c", "c")}
    assert len(stored) == len(callers) * 2
    assert scope_key(Principal(caller_id="ops", sees_all=True), "talker", "a.c") == "a.c"
    token = Principal(caller_id="", run_id=make_conversation_id("talker", "c"))
    assert scope_key(token, "talker", "c") == "c"
