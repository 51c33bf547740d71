"""The page of runs with phases, deaths, edits and many steps: their outline, their notes, and the request of a step."""

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest
from playwright.sync_api import Page, expect
from tests.web.ui.gallery import store_gallery
from tests.web.ui.journals import HOSTILE, store_hostile_run
from tests.web.ui.server import UIServer, build_idle_app


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UIServer]:
    path = tmp_path_factory.mktemp("gallery") / "runs.db"
    asyncio.run(store_gallery(path, datetime.now(UTC), day=False))
    with UIServer(f"sqlite:{path}", build_app=build_idle_app) as server:
        yield server


def test_the_steps_of_a_phase_fold_and_the_phase_has_their_cost(gallery: UIServer, plain_page: Page) -> None:
    page = plain_page
    page.goto(f"{gallery.url}/runs/refund-8841")
    outline = page.get_by_role("navigation", name="Steps")
    heads = outline.locator("summary")
    expect(heads).to_have_text(
        [re.compile(r"phase investigate\s*◆ 1 failed\s*\$0.0239"), re.compile(r"settle\s*\$0.0292")]
    )
    first = outline.get_by_role("link", name="I will look up the order")
    expect(first).to_be_visible()
    heads.first.click()
    expect(first).to_be_hidden()
    expect(outline.get_by_role("link", name="What I found")).to_be_visible()  # its first line
    expect(outline.locator(".step-link")).to_have_count(6)  # the end of the run is no step
    outline.get_by_role("link", name="Edited 1").click()
    expect(page.locator("details.call:target")).to_contain_text("387.0 → 258.0")


def test_the_head_says_what_a_run_waited_for_and_the_transcript_where_its_worker_died(
    gallery: UIServer, page: Page
) -> None:
    page.goto(f"{gallery.url}/runs/refund-8841")
    figures = page.locator(".figures")
    expect(figures.locator(".time")).to_contain_text("53 min waited41 min waiting, 12 min parked")
    expect(figures).to_contain_text(re.compile(r"Tool calls\s*6\s*1 failed\s*Attempts\s*4\s*1 worker died"))
    expect(page.locator("#step-1 .divider.bad")).to_have_text(
        "worker w-19aa died · resumed on w-7f3a after 0.3 s · nothing finished was repeated"
    )
    expect(page.locator("#step-5 .divider.wait")).to_contain_text("parked for 12 min")
    expect(page.locator(".divider.bad, .divider.wait")).to_have_count(2)


def test_many_steps_fold_by_tens_and_routine_calls_leave_the_timeline(gallery: UIServer, plain_page: Page) -> None:
    page = plain_page
    page.goto(f"{gallery.url}/runs/research-20c1")
    groups = page.locator("#outline details")
    expect(groups.locator("summary b")).to_have_text(["93–100", "101–110", "111–120", "121–121"])
    expect(page.locator("#outline details[open]")).to_have_count(1)
    expect(page.locator("#outline").get_by_role("link", name="Page 121")).to_be_visible()
    groups.nth(2).locator("summary").click()
    expect(page.locator("#outline .bad", has_text="read_page")).to_be_visible()
    rows = page.locator("#timeline a.tl-row")
    expect(rows).to_have_count(1 + 25 + 1)  # the workers, the steps, and the call that failed
    page.get_by_role("link", name="Show all", exact=True).click()
    expect(rows).to_have_count(1 + 25 + 25)
    page.goto(f"{gallery.url}/runs/research-20c1?step=57#step-57")
    expect(page.locator("#outline details[open] summary b")).to_have_text("51–60")


def test_the_request_of_a_step_has_what_the_model_read(gallery: UIServer, plain_page: Page) -> None:
    page = plain_page
    page.goto(f"{gallery.url}/runs/refund-8841")
    page.get_by_role("link", name="Request of step 3").click()
    main = page.locator("main")
    expect(main).to_contain_text("claude-sonnet-4-5 · 7 messages that the model read")
    roles = page.locator(".turn header b")
    expect(roles).to_have_text(["user", "instructions", "refunds", "result", "result", "refunds", "result"])
    expect(main).to_contain_text("Never refund more than was paid.")
    expect(main).not_to_contain_text("The carrier did not answer.")  # the reply itself
    page.get_by_role("link", name="Back to the step").click()
    page.get_by_role("link", name="Request of step 4").click()
    expect(roles).to_have_text(["user"])  # a phase is a conversation of its own
    expect(main).to_contain_text("Settle the case")
    for path in ("refund-8841/request/99", "refund-8841/request/0", "none/request/1"):
        assert httpx.get(f"{gallery.url}/runs/{path}").status_code == 404
    assert httpx.get(f"{gallery.url}/runs/refund-8841/request/x").status_code == 422


def test_a_long_request_shows_its_newest_messages(gallery: UIServer, page: Page) -> None:
    page.goto(f"{gallery.url}/runs/research-20c1/request/121")
    expect(page.locator("main")).to_contain_text("The newest 100 of 241")
    expect(page.locator(".turn")).to_have_count(100)


def test_hostile_text_in_phases_workers_and_requests_is_escaped(gallery: UIServer, page: Page) -> None:
    gallery.call(store_hostile_run(gallery.app.store, "hostile"))
    page.goto(f"{gallery.url}/runs/hostile")
    expect(page.locator("#outline summary b").first).to_have_text(HOSTILE[0][:39], use_inner_text=True)
    page.goto(f"{gallery.url}/runs/hostile/request/1")
    expect(page.locator(".turn")).to_have_count(1)
    for line in HOSTILE[:2]:
        expect(page.locator(".turn")).to_contain_text(line)
    assert page.evaluate("window.hacked") is None


def test_a_wide_window_has_the_transcript_beside_the_timeline(gallery: UIServer, page: Page) -> None:
    for width, is_beside in ((1440, False), (2400, True), (2560, True)):
        page.set_viewport_size({"width": width, "height": 1300})
        page.goto(f"{gallery.url}/runs/refund-8841")
        boxes = [page.locator(name).bounding_box() for name in ("#run-head > .ends", "#timeline", ".run-body")]
        ends, timeline, body = (box for box in boxes if box is not None)
        assert ends["y"] + ends["height"] <= timeline["y"]
        assert (body["x"] >= timeline["x"] + timeline["width"]) is is_beside
        assert (body["y"] == ends["y"]) is is_beside
        assert (body["y"] >= timeline["y"] + timeline["height"]) is not is_beside
        assert page.evaluate("document.documentElement.scrollWidth") == width
