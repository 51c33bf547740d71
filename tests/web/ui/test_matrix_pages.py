"""List, limits, budgets and timeline: with and without JavaScript, light and dark, on each durable store."""

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from starlette.applications import Starlette
from tests.web.ui.agents import LONG_TEXT
from tests.web.ui.conftest import find_serious, watched_page
from tests.web.ui.journals import store_long_run
from tests.web.ui.server import UIServer
from tests.web.ui.visitor import Visitor

from holdfast.app import App
from holdfast.checkpoint.workers import LimitUsage
from holdfast.cli.demo.sample_fleet import build_fleet
from holdfast.cli.demo.worker_kills import KilledFleet
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui.application import build_ui

HOSTILE_NAME = "<b onclick=alert(1)>mine</b>"


def test_filter_sort_and_save_the_filter(visitor: Visitor) -> None:
    server, page, suite = visitor.server, visitor.page, visitor.prefix
    cheap, dear = visitor.name("a"), visitor.name("b")
    visitor.submit("reader", "b", "done", labels={"suite": suite}, caller_id="bob")
    visitor.submit("greeter", "a", "done", labels={"suite": suite}, caller_id="bob")
    visitor.submit("greeter", "c", "done", labels={"suite": "other"}, caller_id="bob")
    rows = page.locator("tbody tr")
    page.get_by_label("Filter runs").fill(f"agnet:<b>x</b> label.suite:{suite}")
    visitor.click("Filter")
    expect(page.get_by_role("alert")).to_have_text("agnet is not a filter: did you mean agent:<b>x</b>?")
    page.get_by_label("Filter runs").fill(f"label.suite:{suite} caller:bob since:1h invoice")
    visitor.click("Filter")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text(cheap)
    page.get_by_role("link", name="Cost").click()
    expect(rows.first).to_contain_text(dear)
    page.get_by_role("link", name="Cost ↓").click()
    expect(rows.first).to_contain_text(cheap)
    page.get_by_role("link", name="Worked").click()
    expect(page.get_by_role("link", name="Worked ↓")).to_be_visible()

    filtered = page.url
    page.locator("summary", has_text="Save this filter…").click()
    page.get_by_label("Name of the filter").fill(HOSTILE_NAME)
    visitor.click("Save")
    expect(page).to_have_url(filtered)
    [cookie] = [each for each in page.context.cookies() if "ui-" not in each.get("name", "")]
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    visitor.open("/")
    visitor.click(HOSTILE_NAME, role="link")
    expect(page).to_have_url(filtered)
    expect(rows).to_have_count(2)
    visitor.click(f"Forget the filter {HOSTILE_NAME}")
    expect(page.get_by_role("link", name=HOSTILE_NAME, exact=True)).to_have_count(0)

    server.call(store_long_run(server.app.store, suite, 1))
    server.call(store_long_run(server.app.store, f"{suite}:c1", 1, parent=suite))
    visitor.open("/")
    child = page.locator(f"[id='row-{suite}:c1']")
    row = page.locator(f"#row-{suite}")
    visitor.click("+ 1 child", row, role="link")
    expect(child).to_be_visible()
    visitor.click("− 1 child", row, role="link")
    expect(child).to_have_count(0)


def test_tick_runs_and_act_on_all_of_a_filter(visitor: Visitor) -> None:
    server, page, suite = visitor.server, visitor.page, {"suite": visitor.prefix}
    first, second, third = visitor.submit_all("clerk", "a", "b", "c", status="waiting", labels=suite)
    visitor.open(f"/?q=label.suite:{visitor.prefix}")
    for run_id in (first, third):
        page.get_by_role("checkbox", name=f"Tick {run_id}").check()
    visitor.click("Cancel…")
    expect(page.get_by_role("heading", name="Cancel 2 runs?")).to_be_visible()
    visitor.submit("clerk", "d", "waiting", labels=suite)
    visitor.click("Cancel 2 runs")
    visitor.expect_said("2 runs cancelled")
    assert not visitor.has_script or find_serious(page) == []
    found = [visitor.get_status(visitor.name(name)) for name in "abcd"]
    assert found == ["cancelled", "waiting", "cancelled", "waiting"], "exactly those of the preview"

    visitor.open(f"/?q=label.suite:{visitor.prefix}")
    page.get_by_text("All of these…").click()
    visitor.click("Resume…", role="link")
    expect(page.get_by_role("heading", name="Resume 2 runs?")).to_be_visible()
    expect(page.locator("tbody")).not_to_contain_text(second)
    visitor.click("Resume 2 runs")
    visitor.expect_said("2 runs left to the workers")
    for run_id in (first, third):
        server.wait_for(run_id, "waiting")  # for the approval, as before


def test_change_limits_and_budgets(visitor: Visitor) -> None:
    server, page, name = visitor.server, visitor.page, f"<b>{visitor.prefix}</b>"
    visitor.open("/fleet")
    limits = page.get_by_role("region", name="Concurrency limits")
    limits.locator("summary", has_text="Add…").click()
    limits.get_by_label("Name of the agent or the key").fill(name)
    limits.get_by_label("Runs at the same time").fill("3")
    limits.locator(".sec").get_by_role("button", name="Set").click()
    row = limits.locator("tbody tr", has_text=name)
    expect(row).to_contain_text("0 of 3")
    row.locator("summary").click()
    row.get_by_label(f"the limit of {name}").last.fill("0")
    visitor.click("Set", row)
    expect(row).to_contain_text("paused")
    [used] = [each for each in server.call(_list_limits(server.app)) if each.limit.name == name]
    assert (used.limit.kind, used.limit.max_runs) == ("agent", 0)
    row.locator("summary").click()
    visitor.click("Remove", row)
    expect(row).to_have_count(0)

    spender = visitor.prefix
    visitor.submit("reader", "a", "done", caller_id=spender)
    visitor.open("/fleet")
    row = page.get_by_role("region", name="Budgets").locator("tbody tr", has_text=f"caller:{spender}")
    expect(row).to_contain_text("$0.0200 of $100.00")
    change_budget(visitor, "0.02")
    expect(row).to_contain_text("$0.0200 of $0.0200, changed here")
    expect(row).to_contain_text("reached")
    held = visitor.submit("reader", "b", "waiting", caller_id=spender)
    visitor.open(f"/runs/{held}")
    expect(page.locator("main")).to_contain_text("waits for its budget until")
    page.get_by_role("link", name="Raise the limit…").click()
    change_budget(visitor, "0.5")
    server.wait_for(held, "done")
    visitor.open("/fleet")
    row.locator("summary", has_text="Change…").click()
    visitor.click("As in the code", row)
    expect(row).to_contain_text("of $100.00")


async def _list_limits(app: App) -> list[LimitUsage]:
    return [*await app.open_store.list_limits()]


def change_budget(visitor: Visitor, maximum: str) -> None:
    """Set the limit of the visitor's account on the page of the fleet."""
    account = f"caller:{visitor.prefix}"
    row = visitor.page.get_by_role("region", name="Budgets").locator("tbody tr", has_text=account)
    row.locator("summary", has_text="Change…").click()
    row.get_by_label("cost_usd of").last.fill(maximum)
    visitor.click("Set", row)
    visitor.expect_said("The limit is changed")


def test_zoom_the_timeline_search_and_read_long_content(visitor: Visitor) -> None:
    page = visitor.page
    run_id = visitor.submit("reader", "a", "done")
    visitor.open(f"/runs/{run_id}?step=2")
    rows = page.locator("#timeline .tl-row:not(.axis)")
    everything, axis = rows.count(), page.locator("#timeline .axis svg")
    visitor.click("To scale", role="link")
    expect(page.get_by_role("link", name="To scale")).to_have_attribute("aria-current", "true")
    whole = axis.inner_html()
    for zoom in ("2", "4", "8"):
        visitor.click("Zoom in", role="link")
        expect(page).to_have_url(re.compile(rf"\?step=2&scale=true&zoom={zoom}&at="))
    assert axis.inner_html() != whole
    visitor.click("Later", role="link")
    visitor.click("Zoom out", role="link")
    expect(page).to_have_url(re.compile(r"zoom=4&at="))
    visitor.click("All", role="link")
    expect(page).to_have_url(re.compile(r"\?step=2&scale=true#timeline$"))
    expect(rows).to_have_count(everything)
    page.get_by_label("Search in this run").fill("NEEDLE")
    visitor.click("Search")
    expect(page.locator(".hits li")).to_have_count(1)
    visitor.click("step 2", role="link")
    expect(page.locator("#step-2:target")).to_contain_text("Then the needle.")
    call = page.locator("#step-2 details.call")
    call.locator("> summary").click()
    call.get_by_role("link", name=f"Show all {len(LONG_TEXT):,} characters").click()
    expect(page.locator("main pre").last).to_have_text(LONG_TEXT)


AN_HOUR = 3600.0


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[tuple[UIServer, KilledFleet]]:
    """The page of the demo, which is always on SQLite, with its two worker processes. Only the button kills one."""
    url = f"sqlite:{tmp_path / 'runs.db'}"
    fleets: list[KilledFleet] = []

    def make_site(app: App) -> Starlette:
        fleets.append(KilledFleet(app, url, AN_HOUR))
        return build_ui(app, authorize=lambda request: LOCAL_PRINCIPAL, kill_switch=fleets[0].switch)

    def build_app(store: str) -> App:
        return build_fleet(store, take_runs=False)

    async def start() -> "asyncio.Task[None]":
        return asyncio.create_task(fleets[0].run())

    async def stop(task: "asyncio.Task[None]") -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with UIServer(url, make_site, build_app) as server:
        task = server.call(start())
        yield server, fleets[0]
        server.call(stop(task))


async def wait_for_report(fleet: KilledFleet, app: App) -> None:
    """Wait until the page would say what followed a kill."""
    while not fleet.switch.report:
        assert fleet.switch.asked.is_set(), "the run ended before the kill"
        await app.open_store.wait_for_change(timedelta(milliseconds=20))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_kill_a_worker_of_the_demo(demo: tuple[UIServer, KilledFleet], browser: Browser, scheme: str) -> None:
    server, fleet = demo
    server.wait_for("research-001", "running")
    with watched_page(browser, color_scheme=scheme, java_script_enabled=scheme == "light") as page:
        page.goto(server.url)
        page.get_by_role("button", name="Kill a worker").click()
        if scheme == "dark":
            server.call(wait_for_report(fleet, server.app))
            page.goto(server.url)
        expect(page.locator("#kills")).to_contain_text(
            re.compile(r"Worker \w died, research-\d+ resumed at step \d+ on worker \w in \d+\.\d s\."), timeout=60_000
        )
        page.goto("about:blank")
