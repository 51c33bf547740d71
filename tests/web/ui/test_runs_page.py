"""The runs list: what it says, its filters, its pages and its live updates."""

import asyncio
import base64
import re
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlencode

import httpx
from playwright.sync_api import Page, expect
from tests.web.ui.journals import store_long_run
from tests.web.ui.server import UIServer

from holdfast.web.ui.pages.saved_filters import COOKIE

_FAR = datetime(2100, 1, 1, tzinfo=UTC)


def test_a_run_says_why_it_is_where_it_is(server: UIServer, page: Page) -> None:
    server.submit("clerk", "Pay the invoice of ann.", "why-1", caller_id="alice")
    server.wait_for("why-1", "waiting")
    page.goto(server.url)
    row = page.locator("#row-why-1")
    expect(row).to_contain_text('approval of pay(amount=129.0, to="ann")')
    expect(row).to_contain_text("clerk · alice")
    expect(row.locator(".status")).to_have_text("waiting")
    row.get_by_role("link", name="why-1").click()
    expect(page.locator("h1")).to_have_text("why-1")


def test_a_run_whose_provider_refuses_says_when_it_retries(server: UIServer, page: Page) -> None:
    server.submit("throttled", "Try.", "why-429")
    server.wait_for("why-429", "interrupted")
    page.goto(server.url)
    expect(page.locator("#row-why-429 .reason")).to_have_text(
        re.compile(r"retries after ModelUnavailable: 429 Too Many Requests in (60|59) min|in 1 h")
    )


def test_a_run_whose_worker_pauses_before_a_retry_says_when_it_retries(server: UIServer, page: Page) -> None:
    server.submit("patient", "Try.", "why-pause")
    page.goto(server.url)
    expect(page.locator("#row-why-pause .reason")).to_contain_text(
        re.compile(r"retries after ModelUnavailable: 429 Too Many Requests in (\d+ min|1 h)")
    )
    expect(page.locator("#row-why-pause .status")).to_have_text("running")


def test_counts_say_when_there_are_more(server: UIServer) -> None:
    async def submit_many() -> None:
        submit = partial(server.app.submit, "throttled", "Later.", not_before=_FAR, labels={"suite": "more"})
        await asyncio.gather(*(submit() for _ in range(201)))

    server.call(submit_many())
    shown = re.search(r"Queued <b>(\d+)</b>", httpx.get(server.url).text)
    assert shown is not None, "counted by the store"
    assert int(shown[1]) >= 201, "other tests may have queued runs too"
    assert "Queued <b>200+</b>" in httpx.get(f"{server.url}/?q=label.suite:more").text


def test_the_filter_is_part_of_the_url(server: UIServer, page: Page) -> None:
    for run_id, tenant in (("flt-1", "acme"), ("flt-2", "other")):
        server.submit("reader", f"Read about {tenant}.", run_id, caller_id="bob", labels={"tenant": tenant})
        server.wait_for(run_id, "done")
    page.goto(server.url)
    page.get_by_label("Filter runs").fill("label.tenant:acme caller:bob since:1h cost:>0.001 about")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody")).to_contain_text("flt-1")
    page.goto(page.url)  # as a link that a colleague opens
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"{server.url}/?q=label.tenant:acme&status=failed")
    expect(page.get_by_text("No run fits this filter")).to_be_visible()


def test_counts_by_status_are_links(server: UIServer, page: Page) -> None:
    labels = {"suite": "counts"}
    server.submit("clerk", "Pay.", "cnt-1", labels=labels)
    server.submit("reader", "Read.", "cnt-2", labels=labels)
    server.wait_for("cnt-1", "waiting")
    server.wait_for("cnt-2", "done")
    page.goto(f"{server.url}/?q=label.suite:counts")
    chips = page.get_by_role("navigation", name="Status")
    expect(chips).to_contain_text("All 2")
    chips.get_by_role("link", name="Needs you 1").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("#row-cnt-1")).to_be_visible()


def test_a_filter_that_is_not_valid_says_what_to_write(server: UIServer, page: Page) -> None:
    page.goto(f"{server.url}/?q=since:soon")
    expect(page.get_by_role("alert")).to_contain_text("give a duration such as 30m, 24h or 7d")


def test_pages_follow_each_other(server: UIServer, page: Page) -> None:
    for number in range(55):
        server.submit("greeter", "Hello?", f"many-{number:02}", labels={"suite": "paging"})
    for number in range(55):
        server.wait_for(f"many-{number:02}", "done")
    page.goto(f"{server.url}/?q=label.suite:paging")
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("link", name="Older runs").click()
    expect(page.locator("tbody tr")).to_have_count(5)
    expect(page.locator("tbody tr").last).to_contain_text("many-00")


def test_the_list_is_live(server: UIServer, page: Page) -> None:
    page.goto(f"{server.url}/?q=label.suite:live")
    expect(page.get_by_text("No run fits this filter")).to_be_visible()
    server.submit("clerk", "Pay.", "live-1", labels={"suite": "live"})
    expect(page.locator("#row-live-1 .status")).to_have_text("waiting")
    server.call(server.app.cancel("live-1"))
    expect(page.locator("#row-live-1 .status")).to_have_text("cancelled")


def test_the_ticked_runs_are_cancelled_after_a_preview(server: UIServer, page: Page) -> None:
    for run_id in ("tick-1", "tick-2", "tick-3"):
        server.submit("clerk", "Pay.", run_id, labels={"suite": "tick"})
        server.wait_for(run_id, "waiting")
    page.goto(f"{server.url}/?q=label.suite:tick")
    for run_id in ("tick-1", "tick-3"):
        page.get_by_role("checkbox", name=f"Tick {run_id}").check()
    server.submit("clerk", "Pay.", "tick-4", labels={"suite": "tick"})
    expect(page.locator("#row-tick-4 .status")).to_have_text("waiting")  # a live update keeps the ticks
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("heading", name="Cancel 2 runs?")).to_be_visible()
    page.get_by_role("button", name="Cancel 2 runs").click()
    expect(page.get_by_role("status")).to_contain_text("2 runs cancelled")
    found = [server.call(server.app.get(f"tick-{number}")).status for number in (1, 2, 3, 4)]
    assert found == ["cancelled", "waiting", "cancelled", "waiting"]


def test_the_whole_row_is_a_link(server: UIServer, page: Page) -> None:
    server.submit("greeter", "Hello?", "row-link")
    server.wait_for("row-link", "done")
    page.goto(f"{server.url}/?q=row-link")
    box = page.locator("#row-row-link .c-when").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 3, box["y"] + 3)
    expect(page.locator("h1")).to_have_text("row-link")


def test_child_runs_are_folded_until_a_link_opens_them(server: UIServer, plain_page: Page) -> None:
    server.call(store_long_run(server.app.store, "family", 1))
    for number in (1, 2):
        server.call(store_long_run(server.app.store, f"family:c{number}", 1, parent="family"))
    plain_page.goto(server.url)
    expect(plain_page.locator("[id='row-family:c1']")).to_have_count(0)
    plain_page.get_by_role("link", name="+ 2 children").click()
    expect(plain_page.locator("[id='row-family:c1']")).to_be_visible()
    plain_page.get_by_role("link", name="− 2 children").click()
    expect(plain_page.locator("[id='row-family:c1']")).to_have_count(0)
    plain_page.goto(f"{server.url}/?q=parent:family")
    expect(plain_page.locator("tbody tr")).to_have_count(2)


def test_a_cookie_that_the_page_has_not_written_is_no_filter(server: UIServer) -> None:
    nested = base64.urlsafe_b64encode(b"[" * 3000).decode()
    foreign = base64.urlsafe_b64encode(b'[["x", 5], {"name": 1}]').decode()
    deep = base64.urlsafe_b64encode(b'[["x", "", "", "", ' + b"[" * 2500).decode()
    for value in ("x", "a" * 3000, nested, foreign, deep):
        shown = httpx.get(server.url, headers={"cookie": f"{COOKIE}={value}"})
        assert (shown.status_code, 'class="saved"' in shown.text) == (200, False)
    form = {"name": "x", "q": "since:never"}
    assert httpx.post(f"{server.url}/filters", data=form).status_code == 422
    assert httpx.post(f"{server.url}/filters", data={"name": "x" * 41}).status_code == 422
    large = httpx.post(f"{server.url}/filters", data={"name": "x", "q": "é" * 1999})
    assert (large.status_code, "no room" in large.text) == (422, True)
    forged = httpx.post(f"{server.url}/filters", data={"name": "x"}, headers={"sec-fetch-site": "cross-site"})
    assert forged.status_code == 403


def test_the_words_of_a_filter_are_completed(server: UIServer, page: Page) -> None:
    server.submit("greeter", "Hello?", "words-1", caller_id="ann o'hara", labels={"tenant": '"><script>x</script>'})
    server.wait_for("words-1", "done")
    page.goto(server.url)
    field = page.get_by_label("Filter runs")
    field.fill("lamp agent:gr")
    words = page.locator("#filter-words option").evaluate_all("options => options.map(option => option.value)")
    assert "lamp agent:greeter" in words
    assert "lamp since:24h" in words
    found = next(word for word in words if "caller:ann" in word)
    page.goto(f"{server.url}/?{urlencode({'q': found.removeprefix('lamp ')})}")
    expect(page.locator("#row-words-1")).to_be_visible()
    labels = page.locator("#filter-words option").evaluate_all("options => options.map(option => option.value)")
    page.goto(f"{server.url}/?{urlencode({'q': next(word for word in labels if 'label.tenant' in word)})}")
    expect(page.locator("#row-words-1")).to_be_visible()


def test_a_misspelt_condition_is_named_with_the_nearest(server: UIServer, plain_page: Page) -> None:
    plain_page.goto(f"{server.url}/?q=agnet:<b>x</b>")
    expect(plain_page.get_by_role("alert")).to_have_text("agnet is not a filter: did you mean agent:<b>x</b>?")
    plain_page.goto(f"{server.url}/?q=chat:clerk:kim")
    expect(plain_page.get_by_role("alert")).to_have_count(0)


def test_no_other_page_has_the_button(server: UIServer, page: Page) -> None:
    page.goto(server.url)
    expect(page.get_by_role("button", name="Kill a worker")).to_have_count(0)
    assert httpx.post(f"{server.url}/demo/kill", headers={"origin": server.url}).status_code in (404, 405)
