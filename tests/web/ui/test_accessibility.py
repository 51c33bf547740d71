"""Every page in light and dark, on a phone and on a desk: axe-core finds nothing serious, and nothing overflows."""

from collections.abc import Iterator
from typing import Literal

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page
from tests.web.ui.conftest import watch_page
from tests.web.ui.journals import store_fanout, store_parked_run
from tests.web.ui.server import UIServer

_RUN = """axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21aa"], resultTypes: ["violations"]})
    .then(result => result.violations)"""

_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

ColorScheme = Literal["light", "dark"]


@pytest.fixture(scope="module")
def paths(server: UIServer) -> list[str]:
    server.submit("clerk", "Pay the invoice of ann.", "axe-pay", caller_id="alice", labels={"tenant": "acme"})
    server.submit("asker", "A trip to a town with a long name, please.", "axe-ask")
    server.submit("reader", "Read both pages.", "axe-read")
    server.call(store_fanout(server.app.store, "axe-fanout"))
    server.call(store_parked_run(server.app.store, "axe-doubt"))
    server.call(store_parked_run(server.app.store, "axe-parked", in_doubt=(), reason="poison"))
    server.submit("book_trip", "", "axe-trip", inputs={"city": "Lisbon", "nights": 3})
    server.call(server.app.conversation("clerk", "axe").post("Pay ann."))
    server.wait_for("chat:clerk:axe", "waiting")
    server.wait_for("axe-trip", "waiting")
    server.wait_for("axe-pay", "waiting")
    server.wait_for("axe-ask", "waiting")
    server.submit("caller", "Where is it?", "axe-lost")
    assert server.app.store is not None
    server.call(server.app.store.set_limit("agent", "reader", 3))
    server.wait_for("axe-lost", "done")
    server.wait_for("axe-read", "done")
    return [
        "/",
        "/?q=agent:reader&sort=cost",
        "/?q=since:x",
        "/inbox",
        "/inbox/approve",
        "/fleet",
        "/agents?agent=reader",
        "/new",
        "/bulk?action=cancel",
        "/runs/axe-pay",
        "/runs/axe-read",
        "/runs/axe-read?zoom=4&scale=true",
        "/runs/axe-lost",
        "/runs/axe-read?q=page",
        "/runs/axe-read/fork/1",
        "/conversations",
        "/conversations/chat:clerk:axe",
        "/runs/axe-trip",
        "/runs/axe-trip?show=list",
        "/runs/axe-doubt",
        "/runs/axe-fanout/compare?base=fake:one",
        "/runs/none",
    ]


@pytest.fixture(params=[("light", 1440), ("dark", 360)], ids=["light-desk", "dark-phone"])
def screen(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    scheme: ColorScheme
    scheme, width = request.param
    # axe is a script of the test: the policy of the page would refuse it.
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True)
    page, complaints = watch_page(context)
    yield page
    context.close()
    assert complaints == []


def test_no_page_scrolls_sideways_on_a_tablet(server: UIServer, browser: Browser, paths: list[str]) -> None:
    context = browser.new_context(color_scheme="dark", viewport={"width": 1024, "height": 800})
    page, complaints = watch_page(context)
    for path in paths:
        page.goto(server.url + path)
        assert page.evaluate(_OVERFLOW) <= 0, path
    context.close()
    assert complaints == []


def test_every_page_is_accessible(server: UIServer, screen: Page, paths: list[str]) -> None:
    for path in paths:
        screen.goto(server.url + path)
        for details in screen.locator("details").all():
            details.evaluate("element => element.open = true")
        screen.evaluate(AXE_SCRIPT)
        found = screen.evaluate(_RUN)
        serious = [
            (each["id"], node["html"][:200], node.get("failureSummary"))
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]
        assert serious == [], path
        assert screen.evaluate(_OVERFLOW) <= 0, f"{path} scrolls sideways"
