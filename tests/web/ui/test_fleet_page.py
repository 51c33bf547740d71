"""The fleet: workers, the queue, schedules and budgets."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import httpx
import pytest
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from tests.store_kinds import STORES
from tests.web.ui.agents import build_agents, go_on
from tests.web.ui.server import UIServer

from holdfast.app import App
from holdfast.batteries.budget import Budget, Limit
from holdfast.batteries.schedule import Schedule
from holdfast.config import WorkerSettings
from holdfast.runtime.reading.formatting import format_cost
from holdfast.web.auth import ALL_SCOPES, Principal, Scope
from holdfast.web.ui import make_ui


def authorize(request: Request) -> Principal | None:
    user = request.headers.get("x-user", "admin")
    scopes: frozenset[Scope] = frozenset({"read"}) if user == "watcher" else ALL_SCOPES
    return Principal(caller_id=user, sees_all=user in ("admin", "watcher"), scopes=scopes)


class Fleet:
    """A server of an App with a budget and a schedule."""

    def __init__(self, url: str) -> None:
        self.server = UIServer(url, self._make_site, self._build_app)

    def _build_app(self, store: str) -> App:
        budget = Budget(Limit(cost_usd=0.02), Limit(tokens=4000, per="all"))
        worker = WorkerSettings(handle_signals=False)
        return App(build_agents(), store, budget=budget, schedule=Schedule(), worker=worker)

    def _make_site(self, app: App) -> Starlette:
        return make_ui(app, authorize=authorize)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with STORES[request.param].open_empty(tmp_path_factory.mktemp("fleet")) as url:
        fleet = Fleet(url)
        with fleet.server as server:
            add = server.app.schedule.add
            server.call(add("nightly <digest>", "greeter", "Say hello.", "30 3 * * *", timezone="Europe/Lisbon"))
            server.call(add("of alice", "greeter", "Say hello.", "0 12 * * *", caller_id="alice"))
            server.submit("reader", "Read both pages.", "spend", caller_id="alice")
            server.wait_for("spend", "waiting")  # before its third step
            yield fleet


def test_a_job_is_run_now(fleet: Fleet, page: Page) -> None:
    server = fleet.server
    page.goto(f"{server.url}/fleet")
    row = page.get_by_role("region", name="Schedules").locator("tbody tr", has_text="nightly <digest>")
    expect(row).to_contain_text("30 3 * * *")
    expect(row).to_contain_text("Europe/Lisbon")
    expect(row.locator("time")).to_have_count(3)
    first = row.locator("time").first.get_attribute("datetime")
    assert first is not None
    assert datetime.fromisoformat(first) > datetime.now(UTC)
    row.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("status")).to_contain_text("Queued.")
    run_id = page.locator("h1").inner_text()
    server.wait_for(run_id, "done")
    run = server.call(server.app.get(run_id))
    assert (run.agent, run.prompt) == ("greeter", "Say hello.")
    page.goto(f"{server.url}/fleet")
    page.get_by_role("link", name="nightly <digest>").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text(run_id)


def test_budgets_show_what_is_spent_and_the_limit(fleet: Fleet, page: Page) -> None:
    page.goto(f"{fleet.server.url}/fleet")
    budgets = page.get_by_role("region", name="Budgets")
    row = budgets.locator("tbody tr", has_text="caller:alice")
    expect(row).to_contain_text("$0.0200 of $0.0200")
    expect(row).to_contain_text("reached")
    expect(row).to_contain_text("in the last 7 d")
    expect(budgets.locator("tbody tr", has_text="tokens")).to_contain_text("2,000 tokens of 4,000 tokens")
    expect(budgets.get_by_role("img", name="50 % of the limit")).to_be_visible()


def test_limits_are_changed_only_by_those_who_see_all_runs_and_may_control_them(fleet: Fleet) -> None:
    url = fleet.server.url
    limit = {"kind": "agent", "name": "greeter", "max_runs": "1"}
    budget = {"account": "caller:alice", "unit": "cost_usd", "window": str(7 * 86400), "maximum": "99"}
    for path, form in (("/fleet/limits", limit), ("/fleet/budgets", budget)):
        for user in ("alice", "watcher"):
            assert httpx.post(url + path, data=form, headers={"x-user": user}).status_code == 403
        assert httpx.post(url + path, data=form, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    for wrong in (
        {"max_runs": "-1"},
        {"max_runs": "x"},
        {"max_runs": "9" * 12},
        {"name": ""},
        {"kind": "", "name": ""},
    ):
        assert httpx.post(f"{url}/fleet/limits", data=limit | wrong).status_code == 422, wrong
    for wrong in (
        {"maximum": "nan"},
        {"maximum": "-1"},
        {"maximum": "x"},
        {"unit": "id"},
        {"account": "b"},
        {"window": "1e999"},
    ):
        assert httpx.post(f"{url}/fleet/budgets", data=budget | wrong).status_code == 422, wrong
    assert "Change…" not in httpx.get(f"{url}/fleet", headers={"x-user": "alice"}).text


def test_workers_are_listed_with_their_runs_and_live(fleet: Fleet, page: Page) -> None:
    server = fleet.server
    page.goto(f"{server.url}/fleet")
    row = page.get_by_role("region", name="Workers").locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("serves this page")
    expect(row.locator(".status")).to_have_text("idle")
    expect(row.locator("time")).to_be_visible()  # the heartbeat
    go_on.clear()
    server.submit("writer", "Tell me a story.", "held")
    expect(row.locator(".status")).to_have_text("busy")
    expect(row).to_contain_text("held")
    go_on.set()
    expect(row.locator(".status")).to_have_text("idle")


def test_a_user_sees_the_own_jobs_and_budgets_only(fleet: Fleet) -> None:
    url = fleet.server.url
    shown = httpx.get(f"{url}/fleet", headers={"x-user": "alice"}).text
    assert "of alice" in shown
    assert "caller:alice" in shown
    assert "nightly" not in shown
    assert "serves this page" not in shown
    assert re.search(r"<code>all</code>", shown) is None
    refused = httpx.post(f"{url}/fleet/run-job", data={"job": "nightly <digest>"}, headers={"x-user": "alice"})
    unknown = httpx.post(f"{url}/fleet/run-job", data={"job": "none"}, headers={"x-user": "alice"})
    assert (refused.status_code, unknown.status_code) == (404, 404)


def test_the_demo_shows_a_living_fleet(page: Page) -> None:
    command = [sys.executable, "-m", "holdfast", "demo", "--ui"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        page.goto(process.stdout.readline().strip())
        expect(page.locator("#row-refund-8841 .status")).to_have_text("waiting")
        page.get_by_role("link", name="Fleet").click()
        expect(page.get_by_role("region", name="Schedules")).to_contain_text("morning digest")
        expect(page.get_by_role("region", name="Budgets")).to_contain_text("of $25.00")
        workers = page.get_by_role("region", name="Workers")
        expect(workers).to_contain_text(re.compile("busy|idle"))
        expect(workers).not_to_contain_text("serves this page")
        page.goto("about:blank")
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        process.stdout.close()


def test_agents_have_their_failures_costs_and_the_last_error_of_each_tool(server: UIServer, page: Page) -> None:
    server.submit("reader", "Read both pages.", "agent-read")
    server.submit("broken", "Try.", "agent-broken")
    server.wait_for("agent-read", "done")
    server.wait_for("agent-broken", "failed")
    page.goto(server.url)
    page.get_by_role("link", name="Agents").click()
    row = page.locator("tbody tr", has_text="broken")
    expect(row).to_contain_text("100.0 %")
    page.get_by_role("link", name="reader", exact=True).click()
    tools = page.get_by_role("table", name="Tools of reader")
    expect(tools.locator("tbody tr")).to_have_count(1)
    expect(tools).to_contain_text("read_page")
    page.get_by_role("group", name="Runs created in the last").get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(r"period=1h&agent=reader$"))
    expect(tools).to_contain_text("read_page")
    assert "since:1h" in unquote(page.locator("[data-label=Runs] a").first.get_attribute("href") or "")
    assert httpx.get(f"{server.url}/agents?period=<script>").status_code == 200
    run = server.call(server.app.get("agent-read"))
    expect(page.locator("tbody tr", has_text="reader").first).to_contain_text(format_cost(run.usage.cost_usd))


def test_a_page_that_takes_no_runs_is_no_worker(page: Page, tmp_path: Path) -> None:
    def build(store: str) -> App:
        return App([], store, worker=WorkerSettings(take_runs=False, handle_signals=False))

    with UIServer(f"sqlite:{tmp_path / 'runs.db'}", build_app=build) as server:
        page.goto(f"{server.url}/fleet")
        expect(page.get_by_role("region", name="Workers")).to_contain_text("No worker is registered.")
        page.goto("about:blank")
