"""The HTTP API: runs, mail, errors, bounds. The server is a process of its own."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from tests.scripted_model import ScriptedModel
from tests.web.conftest import Site

from holdfast import App
from holdfast.fanout import Fanout, FanoutSettings
from holdfast.web.api import make_api
from holdfast.web.api.operation import MAX_BODY_BYTES
from holdfast.web.auth import LOCAL_PRINCIPAL, Principal


async def submit(client: httpx.AsyncClient, run_id: str, prompt: str, agent: str = "clerk", **more: Any) -> None:
    response = await client.post(
        "/runs", json={"agent": agent, "input": prompt, **more}, headers={"idempotency-key": run_id}
    )
    assert response.status_code == 202, response.text
    assert response.json() == {"run_id": run_id}


async def fetch_result(client: httpx.AsyncClient, run_id: str) -> httpx.Response:
    while True:
        response = await client.get(f"/runs/{run_id}/result", params={"wait": 50})
        if response.status_code != 202 or "calls" in response.json():
            return response


async def wait_for_status(client: httpx.AsyncClient, run_id: str, status: str) -> dict[str, Any]:
    while True:
        run: dict[str, Any] = (await client.get(f"/runs/{run_id}")).json()
        if run["status"] == status:
            return run
        await asyncio.sleep(0.02)


def check_problem(response: httpx.Response, status: int, kind: str) -> str:
    """Check that the response is this problem, and return its detail."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["type"], problem["status"]) == (f"urn:holdfast:{kind}" if kind else "about:blank", status)
    assert problem["title"]
    return str(problem["detail"])


async def test_a_run_is_submitted_read_and_listed(ann: httpx.AsyncClient) -> None:
    await submit(ann, "api-1", "note note", labels={"project": "x"})
    result = (await fetch_result(ann, "api-1")).json()
    assert (result["output"], result["steps"]) == ("did | note note", 3)
    run = (await ann.get("/runs/api-1")).json()
    assert (run["status"], run["agent"], run["caller"], run["labels"]) == ("done", "clerk", "ann", {"project": "x"})
    assert run["output"] == "did | note note"
    listed = (await ann.get("/runs", params={"label": "project=x", "status": "done"})).json()
    assert [run["run_id"] for run in listed["runs"]] == ["api-1"]


async def test_a_person_picks_one_of_several_results(ann: httpx.AsyncClient) -> None:
    for run_id in ("pick-a", "pick-b"):
        await submit(ann, run_id, "note")
    assert (await ann.get("/runs/pick-a/pick")).json() == {"pick": None}
    check_problem(await ann.post("/runs/pick-a/pick", json={"result": "missing"}), 404, "RunNotFound")
    picked = (await ann.post("/runs/pick-a/pick", json={"result": "pick-b"})).json()["pick"]
    assert (picked["run_id"], picked["value"], picked["by"]) == ("pick-a", "pick-b", "ann")
    assert (await ann.get("/runs/pick-a/pick")).json() == {"pick": picked}


async def test_a_run_without_a_key_gets_an_id(ann: httpx.AsyncClient) -> None:
    response = await ann.post("/runs", json={"agent": "clerk", "input": "note"})
    assert (await fetch_result(ann, response.json()["run_id"])).json()["output"] == "did | note"


async def test_the_same_key_is_the_same_run(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "api-2", "note")
    await fetch_result(ann, "api-2")
    await submit(ann, "api-2", "note")
    assert site.read_ledger("api-2") == ["note"]
    other = {"agent": "clerk", "input": "note note"}
    check_problem(await ann.post("/runs", json=other, headers={"idempotency-key": "api-2"}), 409, "RunConflict")


async def test_pages_continue_at_the_cursor(ann: httpx.AsyncClient) -> None:
    names = [f"page-{number}" for number in range(5)]
    for name in names:
        await submit(ann, name, "note", labels={"of": "pages"})
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await ann.get("/runs", params={"label": "of=pages", "limit": 2, **cursor})).json()
        found += [run["run_id"] for run in page["runs"]]
        if page["cursor"] is None:
            break
        cursor = {"cursor": page["cursor"]}
    assert sorted(found) == names
    check_problem(await ann.get("/runs", params={"cursor": "forged"}), 422, "InvalidCursor")


@pytest.mark.parametrize(
    "query",
    [{"limit": "0"}, {"limit": "1000"}, {"limit": "9" * 5000}, {"since": "today"}, {"label": "x"}, {"status": "odd"}],
)
async def test_wrong_parameters_are_problems(ann: httpx.AsyncClient, query: dict[str, str]) -> None:
    response = await ann.get("/runs", params=query)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"


async def test_messages_and_signals_reach_a_run_once(ann: httpx.AsyncClient) -> None:
    await submit(ann, "mail-1", 'wait_for="go"')
    await wait_for_status(ann, "mail-1", "waiting")
    for _ in range(2):
        sent = await ann.post("/runs/mail-1/messages", json={"text": "hurry", "id": "m1"})
        assert (sent.status_code, sent.json()) == (202, {"run_id": "mail-1", "id": "m1"})
    assert (await ann.post("/runs/mail-1/signals", json={"name": "go", "payload": 7})).status_code == 202
    assert (await fetch_result(ann, "mail-1")).json()["output"] == 'did | wait_for="go" | hurry'
    check_problem(await ann.post("/runs/mail-1/messages", json={"text": "late"}), 409, "RunEnded")


async def test_a_call_is_approved_with_other_arguments(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "pay-1", "pay=500")
    waiting = await fetch_result(ann, "pay-1")
    assert waiting.status_code == 202
    [call] = waiting.json()["calls"]
    assert (call["call_id"], call["tool"], call["arguments"]) == ("c0", "pay", {"amount": 500})
    answer = {"kind": "approve", "call_id": "c0", "arguments": {"amount": 5}}
    for digest in ("seen", "", "é", "\0"):
        check_problem(await ann.post("/runs/pay-1/answers", json={**answer, "digest": digest}), 404, "NotWaiting")
    assert (await ann.post("/runs/pay-1/answers", json=answer)).status_code == 202
    assert (await fetch_result(ann, "pay-1")).json()["output"] == "did | pay=500"
    assert site.read_ledger("pay-1") == ["pay 5"]
    check_problem(await ann.post("/runs/pay-1/answers", json=answer), 404, "NotWaiting")


async def test_what_waits_is_listed_with_the_digest_for_the_answer(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "pend-1", "pay=70")
    await wait_for_status(ann, "pend-1", "waiting")
    listed = (await ann.get("/pending", params={"agent": "clerk", "tool": "pay"})).json()["calls"]
    [call] = [each for each in listed if each["run_id"] == "pend-1"]
    assert (call["call_id"], call["arguments"], call["state"]) == ("c0", {"amount": 70}, "needs approval")
    assert "token" not in str(call)
    assert (await ann.get("/pending", params={"tool": "other"})).json() == {"calls": []}
    async with site.client("bob") as bob:
        assert all(each["run_id"] != "pend-1" for each in (await bob.get("/pending")).json()["calls"])
    answer = {"kind": "approve", "call_id": "c0", "digest": call["digest"]}
    assert (await ann.post("/runs/pend-1/answers", json=answer)).status_code == 202
    assert (await fetch_result(ann, "pend-1")).json()["output"] == "did | pay=70"


async def test_a_call_is_denied(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "pay-2", "pay")
    await wait_for_status(ann, "pay-2", "waiting")
    denied = await ann.post("/runs/pay-2/answers", json={"kind": "deny", "call_id": "c0", "reason": "no"})
    assert denied.status_code == 202
    await fetch_result(ann, "pay-2")
    assert site.read_ledger("pay-2") == []


async def test_a_webhook_needs_its_token_and_nothing_else(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "render-1", "render")
    run = await wait_for_status(ann, "render-1", "waiting")
    token = site.wait_for_line("render-1", "token ").partition(" ")[2]
    assert token not in json.dumps(run)
    waiting = await fetch_result(ann, "render-1")
    assert (waiting.status_code, [call["tool"] for call in waiting.json()["calls"]]) == (202, ["render"])
    assert token.rpartition("~")[2] not in waiting.text
    async with site.client("") as webhook:
        check_problem(await webhook.post("/calls/render-1~forged", json={}), 404, "NotWaiting")
        assert (await webhook.post(f"/calls/{token}", json={"url": "u"})).status_code == 204
        await fetch_result(ann, "render-1")
        check_problem(await webhook.post(f"/calls/{token}", json={}), 404, "NotWaiting")


async def test_a_failed_run_is_resumed_after_its_last_good_step(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "fail-1", "note fail")
    failed = check_problem(await fetch_result(ann, "fail-1"), 409, "RunFailed")
    assert "broken <script>" in failed
    site.open_gate("fail-1")
    assert (await ann.post("/runs/fail-1/resume")).status_code == 202
    assert (await fetch_result(ann, "fail-1")).json()["output"] == "did | note fail"
    assert site.read_ledger("fail-1") == ["note"]
    check_problem(await ann.post("/runs/fail-1/resume"), 409, "RunNotClaimable")


async def test_a_run_is_cancelled_forked_and_resumed(site: Site, ann: httpx.AsyncClient) -> None:
    await submit(ann, "cancel-1", "note gate")
    await asyncio.to_thread(site.wait_for_line, "cancel-1", "gate")
    check_problem(await ann.post("/runs/cancel-1/resume"), 409, "RunBusy")
    assert (await ann.post("/runs/cancel-1/cancel")).status_code == 202
    check_problem(await fetch_result(ann, "cancel-1"), 409, "RunCancelled")
    check_problem(await ann.post("/runs/cancel-1/fork", json={"at_step": 9}), 409, "CheckpointError")
    for fork in ("fork-1", "cancel-1"):
        site.open_gate(fork)
    assert (await ann.post("/runs/cancel-1/fork", json={"at_step": 1, "run_id": "fork-1"})).status_code == 202
    assert (await fetch_result(ann, "fork-1")).json()["output"] == "did | note gate"
    assert site.read_ledger("fork-1") == ["gate"], "the step before the fork is not repeated"
    body = {"at_step": 1, "edited": "note", "run_id": "fork-2"}
    assert (await ann.post("/runs/cancel-1/fork", json=body)).status_code == 202
    assert (await fetch_result(ann, "fork-2")).json()["output"] == "did | note"
    refused = await ann.post("/runs/cancel-1/fork", json={"at_step": 1, "results": {"none": 1}})
    check_problem(refused, 409, "CheckpointError")
    assert (await ann.post("/runs/cancel-1/resume")).status_code == 202
    assert (await fetch_result(ann, "cancel-1")).json()["output"] == "did | note gate"


async def test_unknown_paths_methods_and_agents_are_problems(ann: httpx.AsyncClient) -> None:
    check_problem(await ann.get("/runs/nothing"), 404, "RunNotFound")
    check_problem(await ann.get("/nothing"), 404, "")
    check_problem(await ann.delete("/runs"), 405, "")
    check_problem(await ann.post("/runs", json={"agent": "none", "input": ""}), 422, "DefinitionError")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"[]",
        b'{"agent": "clerk"}',
        b'{"agent": "clerk", "input": 5}',
        b'{"agent": "clerk", "input": "x", "promt": "y"}',
        b'{"agent": "clerk", "input": "\xff"}',
        b'{"agent": "clerk", "input": "\\ud800"}',
        b"[" * 100_000,
    ],
)
async def test_a_wrong_body_is_a_problem_and_starts_nothing(ann: httpx.AsyncClient, body: bytes) -> None:
    headers = {"content-type": "application/json", "idempotency-key": "wrong-body"}
    response = await ann.post("/runs", content=body, headers=headers)
    assert response.status_code == 422, response.text
    assert response.headers["content-type"] == "application/problem+json"
    check_problem(await ann.get("/runs/wrong-body"), 404, "RunNotFound")


async def test_a_body_has_to_be_declared_as_json(ann: httpx.AsyncClient) -> None:
    form = {"content-type": "text/plain"}
    response = await ann.post("/runs", content=b'{"agent": "clerk", "input": "note"}', headers=form)
    check_problem(response, 415, "UnsupportedMediaType")


async def test_large_bodies_are_refused(ann: httpx.AsyncClient) -> None:
    headers = {"content-type": "application/json"}
    large = b'{"agent": "clerk", "input": "' + b"x" * MAX_BODY_BYTES + b'"}'
    check_problem(await ann.post("/runs", content=large, headers=headers), 413, "BodyTooLarge")

    async def chunks() -> Any:
        for _ in range(MAX_BODY_BYTES // 65536 + 1):
            yield b"x" * 65536

    check_problem(await ann.post("/runs", content=chunks(), headers=headers), 413, "BodyTooLarge")


async def test_only_a_model_of_a_fanout_is_picked_as_its_result(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path / 'runs.db'}"
    models = {name: ScriptedModel(name) for name in ("red", "blue")}
    fanout = Fanout("Which?", models, store=url, settings=FanoutSettings(handle_signals=False))
    await fanout.run()
    async with App([], url, worker=False) as app:
        transport = httpx.ASGITransport(make_api(app, authorize=_let_in))
        async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
            path = f"/runs/{fanout.run_id}/pick"
            refused = await client.post(path, json={"result": "green"})
            assert "it has red, blue" in check_problem(refused, 422, "DefinitionError")
            picked = (await client.post(path, json={"result": "blue"})).json()["pick"]
            assert picked["value"] == "blue"


def _let_in(request: Request) -> Principal:
    return LOCAL_PRINCIPAL
