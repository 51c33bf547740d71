"""The form that starts a run."""

from pathlib import Path

import httpx
from playwright.sync_api import Page, expect
from tests.web.ui.server import UIServer

from holdfast.app import App
from holdfast.config import WorkerSettings


def test_what_is_not_valid_is_shown_on_the_form(server: UIServer, page: Page) -> None:
    page.goto(f"{server.url}/new?agent=reader")
    expect(page.get_by_label("Agent")).to_have_value("reader")
    page.get_by_label("Input").fill("Read it.")
    page.get_by_label("Labels").fill("acme")
    page.get_by_role("button", name="Start the run").click()
    expect(page.get_by_role("alert")).to_contain_text("write one a line, such as tenant=acme")
    expect(page.get_by_label("Input")).to_have_value("Read it.")
    expect(page.get_by_label("Labels")).to_have_value("acme")
    data = {"agent": "reader", "input": "x", "data": "[1]"}
    for fields in ({"agent": "reader", "input": "  "}, {"agent": "nobody", "input": "x"}, {"input": "x"}, data):
        refused = httpx.post(f"{server.url}/runs", data=fields)
        assert (refused.status_code, 'role="alert"' in refused.text) == (422, True)
    assert [run for run in server.call(server.app.list()).runs if run.agent != "greeter"] == []


def test_a_form_that_is_sent_twice_starts_one_run(server: UIServer) -> None:
    fields = {"agent": "greeter", "input": "Hello?", "run_id": "sent-twice"}
    assert [httpx.post(f"{server.url}/runs", data=fields).status_code for _ in range(2)] == [303, 303]
    changed = httpx.post(f"{server.url}/runs", data=fields | {"input": "Hello there?"})
    assert changed.status_code == 409
    assert "has started the run sent-twice already" in changed.text
    assert [run.run_id for run in server.call(server.app.list(agent="greeter")).runs] == ["sent-twice"]


def test_a_page_without_agents_starts_no_runs(tmp_path: Path) -> None:
    def build_reader(store: str) -> App:
        return App([], store, worker=WorkerSettings(handle_signals=False))

    with UIServer(f"sqlite:{tmp_path / 'runs.db'}", build_app=build_reader) as server:
        assert "New run" not in httpx.get(server.url).text
        assert httpx.get(f"{server.url}/new").status_code == 403
        assert httpx.post(f"{server.url}/runs", data={"agent": "greeter", "input": "x"}).status_code == 403
