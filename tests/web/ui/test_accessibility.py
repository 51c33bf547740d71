"""Every page in light and dark, on a phone and on a desk: axe-core finds nothing serious, and nothing overflows."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page
from tests.web.ui.conftest import find_serious, watched_page
from tests.web.ui.journals import store_fanout, store_parked_run
from tests.web.ui.server import UIServer

_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


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
        "/runs/axe-read/request/2",
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
    scheme, width = request.param
    with watched_page(browser, color_scheme=scheme, viewport={"width": width, "height": 800}) as page:
        yield page


def test_every_page_is_accessible(server: UIServer, screen: Page, paths: list[str]) -> None:
    size = screen.viewport_size
    assert size is not None
    for path in paths:
        screen.goto(server.url + path)
        screen.locator("details").evaluate_all("all => all.forEach(details => details.open = true)")
        assert find_serious(screen) == [], path
        for width in (size["width"], 1024):
            screen.set_viewport_size({"width": width, "height": 800})
            assert screen.evaluate(_OVERFLOW) <= 0, f"{path} scrolls sideways at {width} px"
        screen.set_viewport_size(size)
