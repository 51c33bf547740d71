"""Live updates while a worker in another process is killed, and a further one takes its run."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect
from tests.web.ui.server import UIServer

ROOT = Path(__file__).parents[3]


@contextmanager
def killed_after(store: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker process, killed at the end."""
    worker = subprocess.Popen([sys.executable, "-m", "tests.web.ui.worker_main", store, *arguments], cwd=ROOT)
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait()


def test_a_killed_worker_is_seen_at_once_and_its_run_ends_in_another(page: Page, tmp_path: Path) -> None:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    with UIServer(store) as server:
        page.goto(server.url)
        with killed_after(store):
            expect(page.locator("#row-novel .status")).to_have_text("running")
            page.get_by_role("link", name="novel").click()
            expect(page.locator("#draft")).to_have_text("It was a dark and stormy night")
            expect(page.locator("#attempt-1 .status")).to_have_text("works")
        expect(page.locator("h1 + .status")).to_have_text("interrupted")
        expect(page.locator("main")).to_contain_text("died; ready for another worker")
        expect(page.locator("#draft")).to_be_hidden()
        expect(page.locator("#attempt-1 .status")).to_have_text("died")
        first = page.locator("#attempt-1 code").inner_text()
        with killed_after(store, "finish"):
            expect(page.locator("h1 + .status")).to_have_text("done")
        expect(page.locator("#attempt-2 .status")).to_have_text("done")
        expect(page.locator("#attempt-2 code")).not_to_have_text(first)
        expect(page.locator("#attempt-1 .status")).to_have_text("died")
        expect(page.locator("#timeline")).to_contain_text("attempt 2")
        expect(page.locator("#timeline .tl-note")).to_contain_text(f"Worker {first} died")
        page.goto("about:blank")
