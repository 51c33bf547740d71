"""The page behind a reverse proxy that strips a prefix: links, actions, checks of the origin, live updates."""

from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from tests.web.ui.proxy import PrefixProxy
from tests.web.ui.server import UIServer

from holdfast.app import App
from holdfast.web.auth import Principal
from holdfast.web.ui import make_ui

PREFIX = "/ops/agents"


def authorize(request: Request) -> Principal | None:
    """Trust the header that the proxy sets."""
    user = request.headers.get("x-user")
    return None if user is None else Principal(caller_id=user)


def make_site(app: App) -> Starlette:
    return make_ui(app, authorize=authorize)


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UIServer]:
    url = f"sqlite:{tmp_path_factory.mktemp('proxied') / 'runs.db'}"
    with UIServer(url, make_site, root_path=PREFIX) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(backend: UIServer) -> Iterator[PrefixProxy]:
    with PrefixProxy(backend.url, PREFIX) as proxy:
        yield proxy


def test_pages_actions_and_live_updates_work(backend: UIServer, proxy: PrefixProxy, page: Page) -> None:
    page.goto(f"{proxy.url}/")
    expect(page.get_by_text("No runs yet")).to_be_visible()
    page.get_by_role("link", name="New run").click()
    page.get_by_label("Agent").select_option("clerk")
    page.get_by_label("Input").fill("Pay the invoice of ann.")
    page.get_by_role("button", name="Start the run").click()
    assert page.url.startswith(f"{proxy.url}/runs/")
    run_id = page.locator("h1").inner_text()
    expect(page.get_by_role("article", name=f"Approval of run {run_id}")).to_be_visible()  # live
    page.get_by_role("button", name="Approve a", exact=True).click()
    expect(page.locator("h1 + .status")).to_have_text("done")  # live
    assert page.evaluate("getComputedStyle(document.querySelector('.status')).borderRadius") == "12px"
    for name in ("Inbox", "Conversations", "Fleet", "Runs"):
        page.get_by_role("navigation", name="Sections").get_by_role("link", name=name).click()
        expect(page.locator("nav [aria-current=page]")).to_contain_text(name)
        assert page.url.startswith(f"{proxy.url}/")
    page.get_by_role("link", name=run_id).click()
    expect(page).to_have_url(f"{proxy.url}/runs/{run_id}")


def test_the_list_is_live_through_the_proxy(backend: UIServer, proxy: PrefixProxy, page: Page) -> None:
    page.goto(f"{proxy.url}/?q=label.suite:proxy")
    expect(page.get_by_text("No run fits this filter")).to_be_visible()
    backend.submit("clerk", "Pay.", "proxied", caller_id="alice", labels={"suite": "proxy"})
    expect(page.locator("#row-proxied .status")).to_have_text("waiting")


def test_the_origin_of_a_change_is_checked_behind_the_proxy(backend: UIServer, proxy: PrefixProxy) -> None:
    for run_id, origin in (("own", proxy.origin), ("evil", "https://evil.example")):
        backend.submit("clerk", "Pay.", run_id, caller_id="alice")
        backend.wait_for(run_id, "waiting")
        httpx.post(f"{proxy.url}/runs/{run_id}/cancel", headers={"origin": origin})
    assert backend.call(backend.app.get("own")).status == "cancelled"
    assert backend.call(backend.app.get("evil")).status == "waiting"
