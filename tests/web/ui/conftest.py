"""One browser and one server for each module; a page that fails its test when the browser complains."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.store_kinds import STORES
from tests.web.ui.server import UIServer

expect.set_options(timeout=30_000)  # for a busy machine

#: What a browser reports for an error page that a test asks for.
_EXPECTED = "Failed to load resource: the server responded with a status of 4"

_REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", event =>
    console.error(`CSP violation: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""


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


def watch_page(context: BrowserContext) -> tuple[Page, list[str]]:
    """Return a page and the list of its complaints: errors of scripts, and violations of the security policy."""
    complaints: list[str] = []
    context.set_default_timeout(30_000)
    context.add_init_script(_REPORT_VIOLATIONS)
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda line: (
            complaints.append(line.text)
            if line.type in ("error", "warning") and not line.text.startswith(_EXPECTED)
            else None
        ),
    )
    return page, complaints


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    page, complaints = watch_page(context)
    yield page
    context.close()
    assert complaints == []


@pytest.fixture
def plain_page(browser: Browser) -> Iterator[Page]:
    """A page without JavaScript."""
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()
