"""Renders the pages for the docs: `python -m tests.web.ui.screenshots FOLDER`.

With `--matrix` it renders every page instead, at 1440, 1024 and 390 px, light and dark, with 0, 3 and 10,000 runs. It
prints what overflows.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, expect, sync_playwright
from starlette.applications import Starlette
from tests.web.ui.gallery import register_fleet, store_gallery, store_many
from tests.web.ui.journals import store_fanout
from tests.web.ui.server import UIServer, build_idle_app

from holdfast.app import App
from holdfast.cli.demo.sample_fleet import add_jobs, build_fleet, submit_runs
from holdfast.core.run.waiting import Value
from holdfast.web.auth import Principal
from holdfast.web.ui import make_ui

Picture = tuple[str, str, Literal["light", "dark"]]

_PICTURES: tuple[Picture, ...] = (
    ("web-runs", "/", "light"),
    ("web-conversations", "/conversations/chat:concierge:lobby", "light"),
    ("web-fleet", "/fleet", "light"),
)
_GALLERY: tuple[Picture, ...] = (
    ("web-run", "/runs/refund-8841", "light"),
    ("web-inbox", "/inbox", "dark"),
    ("web-agents", "/agents?agent=refunds", "light"),
)
_WORKFLOW: tuple[Picture, ...] = (("web-workflow", "/runs/trip-5521", "light"),)


#: Every page of a store with many kinds of runs, by the name of its picture.
_MATRIX = {
    "runs": "/",
    "runs-failed": "/?status=failed&sort=cost",
    "runs-none": "/?q=nothing-has-this-name",
    "runs-wrong": "/?q=agnt:refunds",
    "run": "/runs/refund-8841",
    "run-long": "/runs/research-20c1",
    "run-doubt": "/runs/wire-1",
    "run-waiting": "/runs/refund-8852",
    "run-search": "/runs/refund-8841?q=carrier",
    "request": "/runs/refund-8841/request/3",
    "fork": "/runs/refund-8841/fork/3",
    "inbox": "/inbox",
    "inbox-approve": "/inbox/approve",
    "agents": "/agents?agent=refunds",
    "agents-hour": "/agents?period=1h",
    "conversations": "/conversations",
    "compare": "/runs/fan-1/compare",
    "fleet": "/fleet",
    "new": "/new",
    "bulk": "/bulk?action=cancel",
    "missing": "/runs/none",
}
#: The pages of a store with no run, or with 10,000.
_FEW = {name: _MATRIX[name] for name in ("runs", "inbox", "agents", "conversations", "fleet")}
_WIDTHS = (1440, 1024, 390)
_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def make_team_ui(app: App) -> Starlette:
    """Return the page as carol sees it, who decides for one of two audiences."""
    carol = Principal(caller_id="carol", sees_all=True, audiences={"support-lead"})
    deciders = {"support-lead": ["carol", "dave", "erin"], "ops-lead": ["dana", "lee"]}
    return make_ui(app, authorize=lambda request: carol, deciders=deciders)


def main(folder: Path) -> None:
    """Start the fleet, let it get somewhere, and take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        path = Path(temporary) / "gallery.db"
        asyncio.run(store_gallery(path, datetime.now(UTC)))
        browser = _launch(stack)
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
        with UIServer(f"sqlite:{path}", make_team_ui, build_idle_app) as server:
            server.call(register_fleet(server.app.store))
            _take(browser, server, folder, _GALLERY)


def _launch(stack: ExitStack) -> Browser:
    """Start the browser. Until it is closed, this thread cannot run an event loop."""
    playwright = stack.enter_context(sync_playwright())
    return stack.enter_context(
        playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    )


def render_matrix(folder: Path) -> None:
    """Render every page of three stores: one with many kinds of runs, an empty one, and a large one."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        now, path = datetime.now(UTC), Path(temporary)
        asyncio.run(store_gallery(path / "gallery.db", now))
        asyncio.run(store_many(path / "many.db", now, 10_000))
        asyncio.run(store_many(path / "three.db", now, 3))
        browser = _launch(stack)
        for name, pages in (("gallery", _MATRIX), ("empty", _FEW), ("three", _FEW), ("many", _FEW)):
            with UIServer(f"sqlite:{path}/{name}.db", make_team_ui, build_idle_app) as server:
                if name == "gallery":
                    server.call(register_fleet(server.app.store))
                    server.call(store_fanout(server.app.store, "fan-1"))
                _take_matrix(browser, server, folder, name, pages)


def _take_matrix(browser: Browser, server: UIServer, folder: Path, store: str, pages: dict[str, str]) -> None:
    for scheme in _SCHEMES:
        for width in _WIDTHS:
            context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
            page = context.new_page()
            for name, path in pages.items():
                page.goto(server.url + path)
                if overflow := page.evaluate(_OVERFLOW):
                    print(f"{store} {name} overflows by {overflow} px at {width} px")
                page.screenshot(path=folder / f"{store}-{name}-{width}-{scheme}.png", full_page=True)
            context.close()


def _take(browser: Browser, server: UIServer, folder: Path, pictures: Sequence[Picture]) -> None:
    for name, path, scheme in pictures:
        context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 860})
        page = context.new_page()
        page.goto(server.url + path)
        if page.locator("[hx-sse\\:connect]").count():  # the page is live
            expect(page.locator("[data-htmx-powered]").first).to_be_attached()
        page.screenshot(path=folder / f"{name}.png")
        context.close()


if __name__ == "__main__":
    render_matrix(Path(sys.argv[1])) if "--matrix" in sys.argv else main(Path(sys.argv[1]))
