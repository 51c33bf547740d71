"""Durations and costs are the same numbers wherever they are shown."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.web.ui.journals import store_parked_run
from tests.web.ui.server import UIServer

from holdfast.app import App
from holdfast.core.run.waiting import Approve
from holdfast.runtime.reading.formatting import format_cost, format_number
from holdfast.runtime.reading.run_summary import describe_times, format_times
from holdfast.web.api import make_api
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui import make_ui


def make_site(app: App) -> Starlette:
    api = make_api(app, authorize=lambda request: LOCAL_PRINCIPAL)
    ui = make_ui(app, authorize=lambda request: LOCAL_PRINCIPAL)
    return Starlette(routes=[Mount("/api", api), Mount("/", ui)])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:{tmp_path_factory.mktemp('numbers') / 'runs.db'}"


@pytest.fixture(scope="module")
def served(store: str) -> Iterator[UIServer]:
    """Runs that have ended: after an approval, after a parked call, and after a failure."""
    with UIServer(store, make_site) as server:
        server.submit("clerk", "Pay.", "waited")
        server.wait_for("waited", "waiting")
        server.call(server.app.answer("waited", "p1", Approve()))
        server.call(store_parked_run(server.app.store, "parked"))
        server.call(server.app.unpark("parked", {"p1": "paid"}))
        server.submit("broken", "Try.", "failed")
        for run_id in ("waited", "parked", "failed"):
            server.wait_for(run_id, "done", "failed")
        yield server


@pytest.mark.parametrize("run_id", ["waited", "parked", "failed"])
def test_list_run_page_timeline_show_and_api_agree(served: UIServer, page: Page, store: str, run_id: str) -> None:
    run = served.call(served.app.get(run_id))
    assert run.total == run.elapsed + run.waited
    times, worked = describe_times(run), format_times(run)[1]
    page.goto(f"{served.url}/runs/{run_id}")
    assert page.locator("#times").inner_text() == times
    if page.locator("#timeline .sec .why").count():
        assert page.locator("#timeline .sec .why").inner_text() == times
    figures = page.locator(".figures").inner_text()
    assert format_cost(run.usage.cost_usd) in figures
    assert f"{format_number(run.usage.input_tokens)} in" in figures
    page.goto(served.url)
    row = page.locator(f"#row-{run_id}")
    assert row.locator(".c-took").inner_text() == (worked if run.steps or run.elapsed else "–")
    assert row.locator(".c-cost").inner_text() == format_cost(run.usage.cost_usd)
    command = [sys.executable, "-m", "holdfast", "show", run_id, "--store", store]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"^time +(.*)$", shown, re.MULTILINE)[1] == times  # type: ignore[index]
    document = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)["run"]
    answer = httpx.get(f"{served.url}/api/runs/{run_id}").json()
    names = ("total", "elapsed", "waited", "usage", "steps")
    assert [answer[name] for name in names] == [document[name] for name in names]
    assert Path(store.removeprefix("sqlite:")).exists()
