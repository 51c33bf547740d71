"""Renders the main pages of the demo's fleet: `python -m tests.web.ui.screenshots FOLDER`."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, expect, sync_playwright
from starlette.applications import Starlette
from tests.web.ui.server import UIServer

from holdfast.app import App
from holdfast.cli.demo.sample_fleet import add_jobs, build_fleet, submit_runs
from holdfast.core.run.waiting import Value
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui import make_ui

_PICTURES: tuple[tuple[str, str, Literal["light", "dark"]], ...] = (
    ("web-runs", "/", "light"),
    ("web-run", "/runs/refund-8841", "light"),
    ("web-inbox", "/inbox", "dark"),
    ("web-agents", "/agents?agent=refunds", "light"),
    ("web-fleet", "/fleet", "light"),
)


def _make_site(app: App) -> Starlette:
    return make_ui(app, authorize=lambda request: LOCAL_PRINCIPAL)


def main(folder: Path) -> None:
    """Start the fleet, let it get somewhere, and take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as temporary,
        UIServer(f"sqlite:{temporary}/runs.db", _make_site, build_fleet) as server,
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        server.call(add_jobs(server.app.schedule))
        server.call(submit_runs(server.app))
        for run_id in ("trip-ee06", "refund-8841", "refund-8852", "trip-ee07"):
            server.wait_for(run_id, "waiting")
        server.call(server.app.answer("trip-ee06", "q1", Value("May")))
        server.wait_for("trip-ee06", "done")
        for name, path, scheme in _PICTURES:
            context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 860})
            page = context.new_page()
            page.goto(server.url + path)
            if name != "web-agents":  # it is not live
                _wait_until_live(page)
            page.screenshot(path=folder / f"{name}.png")
            context.close()
        browser.close()


def _wait_until_live(page: Page) -> None:
    expect(page.locator("[data-htmx-powered]").first).to_be_attached()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
