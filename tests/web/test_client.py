"""The client: the methods of an App over HTTP, with the same errors."""

import asyncio
import inspect
import socket
from datetime import timedelta

import pytest
from starlette.responses import HTMLResponse, RedirectResponse, Response
from tests.web.conftest import Site
from tests.web.ui.journals import store_fanout, store_parked_run

from holdfast import NOT_EXECUTED, UNKNOWN, Approve, Deny, RunWaiting, ToolCall, Value
from holdfast.checkpoint.errors import CheckpointError, RunConflict, RunEnded, RunNotClaimable, RunNotFound
from holdfast.client import AsyncClient, Client, ServerUnavailable
from holdfast.core.errors import DefinitionError, RunCancelled, RunFailed
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME
from holdfast.core.run.run_events import CallDecided, ToolReturned
from holdfast.runtime.reading.transcript import CallRecord
from holdfast.stores import store_from_url
from holdfast.web.errors import Forbidden, NotAuthenticated, RequestError
from holdfast.web.server import serve_locally


@pytest.fixture
def token(site: Site) -> str:
    return site.issue_token("client-1", "read", "send", "answer", "start", "control")


def test_the_sync_client_has_the_methods_of_the_async_one() -> None:
    def describe(kind: type) -> dict[str, list[str]]:
        methods = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
        return {
            name: [str(each) for each in inspect.signature(value).parameters.values()]
            for name, value in methods.items()
        }

    assert describe(Client) == describe(AsyncClient)
    assert list(inspect.signature(Client).parameters) == list(inspect.signature(AsyncClient).parameters)


async def wait_for_call(client: AsyncClient, run_id: str, tool: str) -> CallRecord:
    while True:
        for call in (await client.get(run_id)).pending_calls:
            if call.tool == tool and call.state == "needs approval":
                return call
        await asyncio.sleep(0.02)


async def test_a_run_from_submit_to_its_result(site: Site, token: str) -> None:
    async with AsyncClient(site.url, token=token) as client:
        assert await client.submit("clerk", 'wait_for="go" pay=3', run_id="client-1", labels={"a": "b"}) == "client-1"
        with pytest.raises(RunWaiting) as waiting:
            await client.result("client-1")
        assert [call.kind for call in waiting.value.calls] == ["signal"]
        await client.send("client-1", "hurry", id="m1")
        await client.signal("client-1", "go", {"n": 1})
        call = await wait_for_call(client, "client-1", "pay")
        await client.answer("client-1", call.call_id, Approve(arguments={"amount": 4}))
        result = await client.result("client-1")
        assert (result.output, result.steps) == ('did | wait_for="go" pay=3 | hurry', 3)
        assert site.read_ledger("client-1") == ["pay 4"]
        assert [run.run_id for run in (await client.list(status=["done"], labels={"a": "b"})).runs] == ["client-1"]
        with pytest.raises(RunEnded, match="reads no more mail"):
            await client.send("client-1", "late")
        with pytest.raises(RunConflict):
            await client.submit("clerk", "another", run_id="client-1")
        with pytest.raises(RunNotFound):
            await client.get("another")
        with pytest.raises(Forbidden):
            await client.fork("client-1", 1)


def test_the_sync_client_does_the_same(site: Site) -> None:
    token = site.issue_token("client-2", "read", "send", "answer", "start", "control")
    with Client(site.url, token=token) as client:
        client.submit("clerk", "note fail", run_id="client-2")
        with pytest.raises(RunFailed, match="run client-2 failed: ") as failed:
            client.result("client-2")
        assert failed.value.run_id == "client-2"
        assert "broken" in failed.value.error
        assert not failed.value.error.startswith("run ")
        site.open_gate("client-2")
        client.requeue("client-2")
        assert client.result("client-2").output == "did | note fail"
        assert client.get("client-2").caller == ""
        with pytest.raises(DefinitionError, match="no agent"):
            client.submit("none", "note", run_id="client-2")
    with pytest.raises(DefinitionError, match="not open"):
        client.get("client-2")


async def test_a_cancelled_run_has_no_result(site: Site) -> None:
    token = site.issue_token("client-3", "read", "start", "control", "answer")
    async with AsyncClient(site.url, token=token) as client:
        await client.submit("clerk", "gate", run_id="client-3")
        await client.cancel("client-3")
        with pytest.raises(RunCancelled):
            await client.result("client-3")
        for answer in (Deny(reason="no"), Value(1)):
            with pytest.raises(Exception, match="no call c9"):
                await client.answer("client-3", "c9", answer)


async def test_a_result_of_a_fan_out_is_picked(site: Site) -> None:
    store = store_from_url(site.store)
    await store.open()
    await store_fanout(store, "client-4")
    await store.close()
    async with AsyncClient(site.url, token=site.issue_token("client-4", "read", "answer")) as client:
        assert await client.get_pick("client-4") is None
        with pytest.raises(DefinitionError, match="it has fake:one, fake:two, fake:three"):
            await client.pick("client-4", "fake:four")
        picked = await client.pick("client-4", "fake:two")
        assert picked is not None
        assert (picked.run_id, picked.value) == ("client-4", "fake:two")
        assert await client.get_pick("client-4") == picked
        assert await client.pick("client-4", "") is None
        assert await client.get_pick("client-4") is None
        with pytest.raises(RunNotFound):
            await client.pick("another", "fake:two")


def test_the_sync_client_picks_too(site: Site) -> None:
    with Client(site.url, token=site.issue_token("client-5", "read", "start", "answer")) as client:
        client.submit("clerk", "note", run_id="client-5")
        picked = client.pick("client-5", "client-5")
        assert picked is not None
        assert client.get_pick("client-5") == picked
    with Client(site.url, token=site.issue_token("client-5", "read")) as reader:
        with pytest.raises(Forbidden):
            reader.pick("client-5", "")
        assert reader.get_pick("client-5") == picked


async def store_doubt(site: Site, run_id: str) -> None:
    """Store a parked run whose process died in the call of `note`."""
    store = store_from_url(site.store)
    await store.open()
    call = ToolCall(id="p1", name="note", arguments={})
    await store_parked_run(store, run_id, prompt="note", call=call)
    await store.close()


@pytest.mark.parametrize(
    ("outcome", "result", "made"),
    [("by hand", "by hand", []), (NOT_EXECUTED, "noted", ["note"]), (UNKNOWN, UNKNOWN_OUTCOME, [])],
    ids=["result", "not-executed", "unknown"],
)
async def test_a_call_in_doubt_is_resolved(
    site: Site, outcome: object, result: str, made: list[str], request: pytest.FixtureRequest
) -> None:
    run_id = f"client-{request.node.callspec.id}"
    await store_doubt(site, run_id)
    async with AsyncClient(site.url, token=site.issue_token(run_id, "read", "control")) as client:
        with pytest.raises(CheckpointError, match="no pending call has the id p2"):
            await client.unpark(run_id, {"p2": outcome})
        await client.unpark(run_id, {"p1": outcome})
        assert (await client.result(run_id)).output == "did | note"
        events = [event async for event in client.events(run_id)]
        [returned] = [event for event in events if isinstance(event, ToolReturned)]
        assert (returned.content, site.read_ledger(run_id)) == (result, made)
        [decided] = [event for event in events if isinstance(event, CallDecided)]
        assert (decided.call_id, decided.decision.via) == ("p1", "http")
        with pytest.raises(RunNotClaimable):
            await client.unpark(run_id)


def test_the_sync_client_unparks_too(site: Site) -> None:
    asyncio.run(store_doubt(site, "client-6"))
    with Client(site.url, token=site.issue_token("client-6", "read", "control")) as client:
        client.unpark("client-6", {"p1": NOT_EXECUTED})
        assert client.result("client-6").output == "did | note"
    assert site.read_ledger("client-6") == ["note"]


async def test_a_wrong_token_and_a_server_that_is_not_there(site: Site) -> None:
    async with AsyncClient(site.url, token="forged.forged") as client:
        with pytest.raises(NotAuthenticated):
            await client.get("client-1")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with AsyncClient(f"http://127.0.0.1:{port}", timeout=timedelta(seconds=5)) as client:
        with pytest.raises(ServerUnavailable, match="does not answer"):
            await client.cancel("client-1")


@pytest.mark.parametrize("response", [
    RedirectResponse("https://login.example/", 302),
    HTMLResponse("<html>Sign in</html>"),
    Response(b"\xff", media_type="application/json"),
    Response(b'{"type": "\xff"}', 403, media_type="application/json"),
], ids=["redirect", "page", "other bytes", "error of other bytes"])  # fmt: skip
async def test_the_answer_of_another_server_is_an_error(response: Response) -> None:
    async with serve_locally(response, 0) as url, AsyncClient(url) as client:

        async def watch() -> None:
            async for _ in client.events("r"):
                pass

        calls = (
            client.get("r"),
            client.result("r"),
            client.submit("clerk", "note"),
            client.conversation("clerk", "k").erase(),
            watch(),
        )
        for call in calls:
            with pytest.raises(RequestError, match="answer"):
                async with asyncio.timeout(60):
                    await call
