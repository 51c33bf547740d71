"""One browser and one server for each module; a page that fails its test when the browser complains."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect, sync_playwright
from tests.store_kinds import STORES
from tests.web.ui.server import UIServer

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
