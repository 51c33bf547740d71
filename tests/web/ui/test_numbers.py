"""Durations and costs are the same numbers wherever they are shown."""

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.cli.shell import Shell
from tests.store_kinds import STORES
from tests.web.ui.journals import store_parked_run
from tests.web.ui.server import UIServer
from tests.web.ui.test_killed_worker import killed_after

from holdfast.app import App
from holdfast.checkpoint.errors import RunNotFound
from holdfast.core.run.waiting import Approve
from holdfast.runtime.reading.formatting import format_cost, format_count, format_number
from holdfast.runtime.reading.run_summary import describe_times, format_times
from holdfast.web.api import make_api
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui import make_ui


def make_site(app: App) -> Starlette:
    api = make_api(app, authorize=lambda request: LOCAL_PRINCIPAL)
    ui = make_ui(app, authorize=lambda request: LOCAL_PRINCIPAL)
    return Starlette(routes=[Mount("/api", api), Mount("/", ui)])


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with STORES[request.param].open_empty(tmp_path_factory.mktemp("numbers")) as url:
        yield url


@pytest.fixture(scope="module")
def served(store: str) -> Iterator[UIServer]:
    """Runs that have ended: after an approval, a parked call, a failure, a killed worker, and one after all of them."""
    with UIServer(store, make_site) as server:
        server.submit("clerk", "Pay.", "waited")
        server.wait_for("waited", "waiting")
        server.call(server.app.answer("waited", "p1", Approve()))
        server.call(store_parked_run(server.app.store, "parked"))
        server.call(server.app.unpark("parked", {"p1": "paid"}))
        server.submit("broken", "Try.", "failed")
        with killed_after(store):
            server.call(wait_for_step(server.app, "novel"))
        with killed_after(store, "print") as printer:
            assert printer.wait() == -signal.SIGKILL, "in the call"
        with killed_after(store, "finish"):
            server.wait_for("novel", "done")
            server.wait_for("book", "parked")
            server.call(server.app.unpark("book", {"p1": "3 copies"}))
            server.wait_for("book", "waiting")
            server.call(server.app.cancel("book"))
            server.call(server.app.requeue("book"))
            server.wait_for("book", "waiting")
            server.call(server.app.answer("book", "s1", Approve()))
            server.wait_for("book", "done")
        for run_id in ("waited", "parked", "failed"):
            server.wait_for(run_id, "done", "failed")
        yield server


async def wait_for_step(app: App, run_id: str) -> None:
    """Wait until another process has finished a step of the run."""
    assert app.store is not None
    async with asyncio.timeout(60):
        while True:
            with suppress(RunNotFound):
                if (await app.get(run_id)).steps:
                    return
            await app.store.wait_for_change(timedelta(milliseconds=20))


def test_list_run_page_timeline_show_and_api_agree(served: UIServer, page: Page, store: str, tmp_path: Path) -> None:
    shell = Shell(tmp_path, store)
    for run_id in ("waited", "parked", "failed", "novel", "book"):  # in one test: their fixture takes seconds
        check_numbers(served, page, shell, run_id)


def check_numbers(served: UIServer, page: Page, shell: Shell, run_id: str) -> None:
    run = served.call(served.app.get(run_id))
    assert run.total == run.elapsed + run.waited
    assert run.status == ("failed" if run_id == "failed" else "done")
    times, worked, cost = describe_times(run), format_times(run)[1], format_cost(run.usage.cost_usd)
    page.goto(f"{served.url}/runs/{run_id}")
    assert page.locator("#times").inner_text() == times
    assert page.locator("#timeline .sec .why").count() == (run_id != "failed")
    if run_id != "failed":
        assert page.locator("#timeline .sec .why").inner_text() == times
    figures = page.locator(".figures").inner_text()
    assert cost in figures
    tokens = f"{format_number(run.usage.input_tokens)} in\n{format_number(run.usage.output_tokens)} out"
    assert tokens in figures
    said = page.locator(".step .turn header").all_inner_texts()
    counted = [re.findall(r"([\d,]+) in, ([\d,]+) out", text.replace("\n", " ")) for text in said]
    sums = [sum(int(pair[place].replace(",", "")) for [pair] in filter(None, counted)) for place in (0, 1)]
    assert sums == [run.usage.input_tokens, run.usage.output_tokens], "the steps add up to the run"
    page.goto(served.url)
    row = page.locator(f"#row-{run_id}")
    assert row.locator(".c-took").inner_text() == (worked if run.steps or run.elapsed else "–")
    assert row.locator(".c-cost").inner_text() == cost
    shown = shell.ok("show", run_id)
    assert re.search(r"^time +(.*)$", shown, re.MULTILINE)[1] == times  # type: ignore[index]
    document = json.loads(shell.ok("show", run_id, "--json"))["run"]
    used = f"{format_count(run.steps, 'step')}, {format_number(run.usage.total_tokens)} tokens"
    assert re.search(r"^used +(.*)$", shown, re.MULTILINE)[1] == (f"{used}, {cost}" if run.usage.cost_usd else used)  # type: ignore[index]
    answer = httpx.get(f"{served.url}/api/runs/{run_id}").json()
    assert [answer[name] for name in ("total", "elapsed", "waited")] == [
        each.total_seconds() for each in (run.total, run.elapsed, run.waited)
    ]
    assert answer["usage"].get("cost_usd", 0) == run.usage.cost_usd
    names = ("total", "elapsed", "waited", "usage", "steps")
    assert [answer[name] for name in names] == [document[name] for name in names]


ENDS = {"novel": ["died", "done"], "book": ["died", "parked", "waiting", "waiting", "done"]}


def test_the_agents_page_has_the_same_cost_and_execution_time(served: UIServer, page: Page) -> None:
    for run_id, ends in ENDS.items():
        run = served.call(served.app.get(run_id))
        assert [attempt.end for attempt in run.attempts] == ends
        page.goto(f"{served.url}/agents?agent={run.agent}")
        row = page.locator("tr.agent", has_text=run.agent)
        assert row.locator("[data-label=Runs]").inner_text() == "1"
        assert row.locator("[data-label=Cost]").inner_text() == format_cost(run.usage.cost_usd)
        assert row.locator("[data-label=p50]").inner_text() == format_times(run)[1]
        assert row.locator("[data-label=p95]").inner_text() == format_times(run)[1]


def test_a_run_that_is_parked_now_has_the_same_numbers(served: UIServer, page: Page, store: str) -> None:
    served.call(store_parked_run(served.app.store, "now-parked"))
    run = served.call(served.app.get("now-parked"))
    later = served.call(served.app.get("now-parked"))
    assert (later.elapsed, later.total > run.total) == (run.elapsed, True), "it waits, and nothing works"
    page.goto(f"{served.url}/runs/now-parked")
    assert f"{format_times(run)[1]} worked" in page.locator("#times").inner_text()
    assert page.locator("#timeline .tl-row", has_text="parked").count() <= 1
