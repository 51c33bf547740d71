"""Renders the main pages of the demo's fleet: `python -m tests.web.ui.screenshots FOLDER`."""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, expect, sync_playwright
from tests.web.ui.server import UIServer

from holdfast.cli.demo.sample_fleet import add_jobs, build_fleet, submit_runs
from holdfast.core.run.waiting import Value

Picture = tuple[str, str, Literal["light", "dark"]]

_PICTURES: tuple[Picture, ...] = (
    ("web-runs", "/", "light"),
    ("web-run", "/runs/refund-8841", "light"),
    ("web-inbox", "/inbox", "dark"),
    ("web-conversations", "/conversations/chat:concierge:lobby", "light"),
    ("web-agents", "/agents?agent=refunds", "light"),
    ("web-fleet", "/fleet", "light"),
)
_WORKFLOW: tuple[Picture, ...] = (("web-workflow", "/runs/trip-5521", "light"),)


def main(folder: Path) -> None:
    """Start the fleet, let it get somewhere, and take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with UIServer(f"sqlite:{temporary}/fleet.db", build_app=build_fleet) as server:
            server.call(add_jobs(server.app.schedule))
            server.call(submit_runs(server.app))
            for run_id in ("trip-ee06", "refund-8841", "refund-8852", "trip-ee07"):
                server.wait_for(run_id, "waiting")
            server.call(server.app.answer("trip-ee06", "q1", Value("May")))
            server.wait_for("trip-ee06", "done")
            _take(browser, server, folder, _PICTURES)
        with UIServer(f"sqlite:{temporary}/trip.db") as server:
            server.submit("book_trip", "", "trip-5521", inputs={"city": "Lisbon", "nights": 3}, caller_id="kim")
            server.wait_for("trip-5521", "waiting")
            _take(browser, server, folder, _WORKFLOW)
        browser.close()


def _take(browser: Browser, server: UIServer, folder: Path, pictures: Sequence[Picture]) -> None:
    for name, path, scheme in pictures:
        context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 860})
        page = context.new_page()
        page.goto(server.url + path)
        if name != "web-agents":  # it is not live
            expect(page.locator("[data-htmx-powered]").first).to_be_attached()
        page.screenshot(path=folder / f"{name}.png")
        context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
