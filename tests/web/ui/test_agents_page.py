"""The agents page: figures of the period, live workers by agent, and the tools, models and approvals of one agent."""

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, expect
from tests.web.ui.gallery import register_fleet, store_gallery
from tests.web.ui.journals import HOSTILE, store_hostile_run
from tests.web.ui.server import UIServer, build_idle_app


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UIServer]:
    path = tmp_path_factory.mktemp("agents") / "runs.db"
    asyncio.run(store_gallery(path, datetime.now(UTC), day=False))
    with UIServer(f"sqlite:{path}", build_app=build_idle_app) as server:
        yield server


def test_the_figures_add_up_and_a_child_counts_for_its_own_agent(gallery: UIServer, plain_page: Page) -> None:
    page = plain_page
    page.goto(f"{gallery.url}/agents")
    tiles = page.locator(".tile")
    expect(tiles).to_have_text([re.compile(name) for name in ("^Runs14", "^Errors", "^Worked, p95", "^Cost", "^Live")])
    costs = page.locator("tr.agent [data-label=Cost]").all_inner_texts()
    listed = sum(float(cost.removeprefix("$")) for cost in costs if cost.startswith("$"))
    shown = re.search(r"\$([\d.]+)", tiles.nth(3).inner_text())
    assert shown is not None
    assert abs(float(shown[1]) - listed) < 0.02
    expect(page.locator("tr.agent", has_text="photo_check").locator("[data-label=Cost]")).to_have_text("$0.0040")
    expect(page.locator("tr.agent", has_text="refunds").locator("[data-label=Cost]")).to_have_text("$0.0531")
    counts = page.locator("tr.agent [data-label=Runs]").all_inner_texts()
    assert sum(map(int, counts)) == 14
    expect(page.locator("tr.agent").first).to_contain_text("treasury")  # most errors first
    page.get_by_role("link", name="Cost", exact=True).click()
    expect(page.get_by_role("link", name="Cost ↓")).to_have_attribute("aria-current", "true")
    expect(page.locator("tr.agent").first).to_contain_text("researcher")


def test_live_workers_are_counted_by_agent_and_a_misspelt_one_is_named(gallery: UIServer, page: Page) -> None:
    gallery.call(register_fleet(gallery.app.store))
    page.goto(f"{gallery.url}/agents")
    expect(page.locator(".tile").last).to_contain_text(re.compile(r"Live workers\s*2\s*they know 7 agents"))
    expect(page.locator(".foot")).to_contain_text("2 workers live")
    expect(page.locator("tr.agent", has_text="refunds").locator("[data-label=Workers]")).to_have_text("2")
    treasury = page.locator("tr.agent", has_text="treasury")
    expect(treasury.locator("[data-label=Workers]")).to_have_text("0")
    expect(treasury).to_contain_text("no live worker knows it; meant treasurer?")


def test_an_opened_agent_has_its_tools_models_and_ends(gallery: UIServer, plain_page: Page) -> None:
    page = plain_page
    page.goto(f"{gallery.url}/agents?period=7d")
    page.get_by_role("link", name="refunds").click()
    tools = page.get_by_role("table", name="Tools of refunds")
    first = tools.locator("tbody tr").first
    expect(first).to_contain_text("carrier_status")
    expect(first.locator("[data-label=Failed]")).to_have_text(re.compile(r"1\s*50.0 %"))
    expect(first.locator("[data-label=p95]")).to_have_text("2.0 s")
    expect(first).to_contain_text("did not answer within 2 s")
    models = page.get_by_role("region", name="Cost by model")
    expect(models).to_contain_text(re.compile(r"\$0.0531\s*claude-sonnet-4-5\s*\$0.0531 · 100 %"))
    ends = page.get_by_role("region", name="How runs end")
    expect(ends).to_contain_text(re.compile(r"approvals: decided, edited, denied\s*1, 1, 0\s*workers died in it\s*1"))
    ends.get_by_role("link", name="waiting").click()
    expect(page.locator("#list tbody tr")).to_have_count(1)
    expect(page.locator("#list tbody tr")).to_contain_text("refund-8852")
    page.goto(f"{gallery.url}/agents?period=7d&agent=refunds")
    page.get_by_role("link", name="refunds").first.click()
    expect(tools).to_have_count(0)


def test_hostile_names_of_agents_tools_and_models_are_escaped(gallery: UIServer, page: Page) -> None:
    gallery.call(store_hostile_run(gallery.app.store, "hostile"))
    page.goto(f"{gallery.url}/agents")
    page.get_by_role("link", name=HOSTILE[0][:30]).click()
    expect(page.locator(".tools tbody tr").first).to_contain_text(HOSTILE[2])
    expect(page.get_by_role("region", name="Cost by model")).to_contain_text(HOSTILE[0])
    assert page.evaluate("window.hacked") is None
