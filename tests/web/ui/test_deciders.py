"""Who may decide: an approval for an audience is shown to all, with the names of those who may answer it."""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from tests.web.ui.journals import HOSTILE
from tests.web.ui.server import UIServer

from holdfast.app import App
from holdfast.web.auth import Principal

TEAMS = {"carol": {"finance"}, "dana": {"ops"}, "root": None}


def authorize(request: Request) -> Principal | None:
    user = request.headers.get("x-user", "")
    return Principal(caller_id=user, sees_all=True, audiences=TEAMS[user]) if user in TEAMS else None


def mount_sites(app: App) -> Starlette:
    deciders = {"finance": ["carol", "erin", HOSTILE[0]]}
    return app.web(authorize=authorize, deciders=deciders)


@pytest.fixture(scope="module")
def teams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UIServer]:
    with UIServer(f"sqlite:{tmp_path_factory.mktemp('teams') / 'runs.db'}", mount_sites) as server:
        for run_id in ("pay-1", "pay-2"):
            server.submit("clerk", "Pay ann.", run_id)  # for the audience `finance`
            server.wait_for(run_id, "waiting")
        yield server


def test_an_approval_for_others_has_their_names_and_no_buttons(teams: UIServer, page: Page) -> None:
    page.set_extra_http_headers({"x-user": "dana"})
    for path in ("/inbox", "/runs/pay-1"):
        page.goto(teams.url + path)
        task = page.get_by_role("article", name="Approval of run pay-1")
        expect(task).to_contain_text(f"Not yours to decide. For finance: carol, erin, {HOSTILE[0]}.")
        expect(task.get_by_role("button")).to_have_count(0)
    page.goto(f"{teams.url}/inbox")
    expect(page.locator("main")).to_contain_text("0 for you")
    expect(page.get_by_role("link", name="as asked")).to_have_count(0)
    page.goto(f"{teams.url}/inbox/approve")
    expect(page.get_by_role("checkbox")).to_have_count(0)
    assert page.evaluate("window.hacked") is None


def test_an_answer_of_others_is_refused_by_the_page_and_the_api(teams: UIServer) -> None:
    [call] = [call for call in teams.call(teams.app.pending()) if call.run_id == "pay-1"]
    headers = {"x-user": "dana"}
    for digest in (call.digest, ""):
        form = {"call_id": call.call_id, "digest": digest, "decision": "approve"}
        assert httpx.post(f"{teams.url}/runs/pay-1/answer", data=form, headers=headers).status_code == 403
    for decision in ("approve", "edit"):
        form = {"call_id": call.call_id, "decision": decision, "arguments": "{}"}
        assert httpx.post(f"{teams.url}/runs/pay-1/answer", data=form, headers=headers).status_code == 403
    ticked = {"tick-1": f'{{"run_id":"pay-1","call_id":"{call.call_id}","digest":"{call.digest}"}}'}
    refused = httpx.post(f"{teams.url}/inbox/approve", data=ticked, headers=headers)
    assert "1 refused" in refused.text
    for body in ({"kind": "approve"}, {"kind": "approve", "digest": call.digest}):
        answer = httpx.post(
            f"{teams.url}/api/runs/pay-1/answers", json={"call_id": call.call_id, **body}, headers=headers
        )
        assert answer.status_code == 403, answer.text
        assert "finance" in answer.text
    assert teams.call(teams.app.get("pay-1")).status == "waiting"


def test_those_who_may_see_who_else_may_and_decide(teams: UIServer, plain_page: Page) -> None:
    page = plain_page
    page.set_extra_http_headers({"x-user": "carol"})
    page.goto(f"{teams.url}/inbox")
    expect(page.locator(".foot")).to_contain_text("1 worker livecarol · finance")
    task = page.get_by_role("article", name="Approval of run pay-1")
    expect(task).to_contain_text("You may, as finance; so may erin")
    task.get_by_role("button", name="Approve", exact=False).first.click()
    expect(page.get_by_role("status")).to_contain_text("Approved")
    teams.wait_for("pay-1", "done")


def test_without_audiences_a_principal_decides_for_all(teams: UIServer) -> None:
    [call] = [call for call in teams.call(teams.app.pending()) if call.run_id == "pay-2"]
    body = {"call_id": call.call_id, "kind": "approve"}
    assert httpx.post(f"{teams.url}/api/runs/pay-2/answers", json=body, headers={"x-user": "root"}).is_success
    teams.wait_for("pay-2", "done")
