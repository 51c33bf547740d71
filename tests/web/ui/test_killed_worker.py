"""Live updates while a worker in another process is killed."""

import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Page, expect
from tests.web.ui.server import UIServer

ROOT = Path(__file__).parents[3]


def test_a_killed_worker_is_seen_at_once(page: Page, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    with UIServer(store) as server:
        page.goto(server.url)
        worker = subprocess.Popen([sys.executable, "-m", "tests.web.ui.worker_main", store], cwd=ROOT)
        try:
            expect(page.locator("#row-novel .status")).to_have_text("running")
            page.get_by_role("link", name="novel").click()
            expect(page.locator("#draft")).to_have_text("It was a dark and stormy night")
        finally:
            worker.kill()
            worker.wait()
        expect(page.locator("h1 + .status")).to_have_text("interrupted")
        expect(page.locator("main")).to_contain_text("died; waits for another worker")
        expect(page.locator("#draft")).to_be_hidden()
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("h1 + .status")).to_have_text("cancelled")
        page.goto("about:blank")
