"""One browser and one server for each module; a page that fails its test when the browser complains."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect, sync_playwright
from starlette.applications import Starlette
from tests.store_kinds import STORES
from tests.web.ui.agents import build_agents
from tests.web.ui.server import UIServer
from tests.web.ui.visitor import TOKEN, Visitor

from holdfast.app import App
from holdfast.batteries.budget import Budget, Limit
from holdfast.config import WorkerSettings
from holdfast.web.security import LinkLogin
from holdfast.web.ui import make_ui

expect.set_options(timeout=30_000)  # for a busy machine

#: What a browser reports for an error page that a test asks for.
_EXPECTED = "Failed to load resource: the server responded with a status of 4"

_RUN_AXE = """axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21aa"], resultTypes: ["violations"]})
    .then(result => result.violations)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Not for the whole session: while Playwright is active, asynchronous tests cannot run in this thread."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.fail("the tests of the page need a browser: apt-get install chromium (`make test` does it for root)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UIServer]:
    """A server on SQLite."""
    with UIServer(f"sqlite:{tmp_path_factory.mktemp('ui') / 'runs.db'}") as server:
        yield server


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def any_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UIServer]:
    """A server on each durable store."""
    with STORES[request.param].open_empty(tmp_path_factory.mktemp("ui")) as url, UIServer(url) as server:
        yield server


@contextmanager
def watched_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page of a browser context of its own. Errors of scripts and violations of the security policy fail the test.

    The browser reports a violation on the console, also without JavaScript.
    """
    complaints: list[str] = []
    context = browser.new_context(**options)
    context.set_default_timeout(30_000)
    context.on("weberror", lambda error: complaints.append(str(error.error)))
    context.on(
        "console",
        lambda line: (
            complaints.append(line.text)
            if line.type in ("error", "warning") and not line.text.startswith(_EXPECTED)
            else None
        ),
    )
    yield context.new_page()
    context.close()
    assert complaints == []


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with watched_page(browser) as page:
        yield page


@pytest.fixture
def plain_page(browser: Browser) -> Iterator[Page]:
    """A page without JavaScript."""
    with watched_page(browser, java_script_enabled=False) as page:
        yield page


def find_serious(page: Page) -> list[tuple[str, str, str]]:
    """Return what axe-core finds serious or critical on the page: the rule, the element, and what to do."""
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate(_RUN_AXE)
    return [
        (each["id"], node["html"][:200], node.get("failureSummary"))
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def budgeted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UIServer]:
    """A server on each durable store, with a budget, for browsers that have opened its link."""

    def build_app(store: str) -> App:
        worker = WorkerSettings(handle_signals=False)
        return App(build_agents(), store, budget=Budget(Limit(cost_usd=100.0)), worker=worker)

    def make_site(app: App) -> Starlette:
        return make_ui(app, login=LinkLogin(TOKEN))

    empty = STORES[request.param].open_empty(tmp_path_factory.mktemp("ui"))
    with empty as url, UIServer(url, make_site, build_app) as server:
        yield server


@pytest.fixture
def visitor(request: pytest.FixtureRequest, browser: Browser, budgeted: UIServer) -> Iterator[Visitor]:
    """A person with JavaScript on SQLite, and one without it on PostgreSQL. The colour scheme alternates."""
    has_script = (budgeted.app.store_url or "").startswith("sqlite")
    is_dark = has_script == bool(len(request.node.originalname) % 2)
    scheme = "dark" if is_dark else "light"
    with watched_page(browser, java_script_enabled=has_script, color_scheme=scheme) as page:
        visitor = Visitor(budgeted, page, has_script, request.node.name)
        visitor.open(f"/login?token={TOKEN}")
        expect(page).to_have_url(f"{budgeted.url}/")
        channels = re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert (sum(map(int, channels[:3])) < 3 * 128) == is_dark
        yield visitor
