"""The button of the demo that kills a worker."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from starlette.applications import Starlette
from tests.web.ui.server import UIServer

from holdfast.app import App
from holdfast.cli.demo.sample_fleet import build_fleet
from holdfast.cli.demo.worker_kills import KilledFleet
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui.application import build_ui

AN_HOUR = 3600.0


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[UIServer]:
    """The page of the demo with its two worker processes. Only the button kills one."""
    url = f"sqlite:{tmp_path / 'runs.db'}"
    fleets: list[KilledFleet] = []

    def make_site(app: App) -> Starlette:
        fleets.append(KilledFleet(app, url, AN_HOUR))
        return build_ui(app, authorize=lambda request: LOCAL_PRINCIPAL, kill_switch=fleets[0].switch)

    def build_app(store: str) -> App:
        return build_fleet(store, take_runs=False)

    async def start() -> "asyncio.Task[None]":
        return asyncio.create_task(fleets[0].run())

    async def stop(task: "asyncio.Task[None]") -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with UIServer(url, make_site, build_app) as server:
        task = server.call(start())
        yield server
        server.call(stop(task))


def test_a_visitor_kills_a_worker_and_reads_how_another_took_over(demo: UIServer, page: Page) -> None:
    demo.wait_for("research-001", "running")
    page.goto(demo.url)
    page.get_by_role("button", name="Kill a worker").click()
    expect(page.locator("#kills")).to_contain_text(
        re.compile(r"Worker \w died, research-001 resumed at step \d+ on worker \w in \d+\.\d s\."), timeout=60_000
    )


def test_no_other_page_has_the_button(server: UIServer, page: Page) -> None:
    page.goto(server.url)
    expect(page.get_by_role("button", name="Kill a worker")).to_have_count(0)
    assert httpx.post(f"{server.url}/demo/kill", headers={"origin": server.url}).status_code in (404, 405)
