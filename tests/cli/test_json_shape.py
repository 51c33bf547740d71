"""`--json` prints what the HTTP API returns for the same runs."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast import Agent, App, Reply, RunWaiting, ToolCall, WorkerSettings, tool
from holdfast.cli.program import build_program
from holdfast.cli.run_session import CommandResult
from holdfast.core import Message, ToolSchema
from holdfast.web.api import make_api
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.wire import MailReference, RunReference, RunResult
from holdfast.workflows import map_items, workflow

Command = Callable[..., Any]


@tool(approval=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    calls = [ToolCall(id="c1", name="pay", arguments={"euros": 7})] if tools else []
    return Reply(text="done", tool_calls=calls)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:{tmp_path / 'runs.db'}"


@pytest.fixture
def app(store: str) -> App:
    agents = [Agent(name="plain", model=model), Agent(name="payer", model=model, tools=[pay])]
    return App(agents, store, worker=WorkerSettings(take_runs=False, handle_signals=False))


@pytest.fixture
def command(store: str, capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Return what a command prints with `--json`."""

    def run(*arguments: str) -> Any:
        capfdbinary.readouterr()
        build_program()([*arguments, "--store", store, "--json"], standalone_mode=False)
        return json.loads(capfdbinary.readouterr().out)

    return run


async def _execute(app: App) -> None:
    async with app:
        await app.run("plain", "go", run_id="done", labels={"team": "a"})
        with pytest.raises(RunWaiting):
            await app.run("payer", "go", run_id="waits")


async def _request(app: App, path: str) -> Any:
    async with (
        app,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(make_api(app, authorize=lambda request: LOCAL_PRINCIPAL)),
            base_url="http://localhost",
        ) as api,
    ):
        response = await api.get(path)
        assert response.status_code == 200, response.text
        return response.json()


def _cut_ages(response: Any) -> Any:
    """Cut what depends on the time that has passed."""
    for run in response.get("runs", [response]):
        run["description"] = run["description"].partition("), ")[0]
        if run["status"] != "done":
            del run["total"], run["waited"]
    return response


def test_reading_a_run_gives_what_the_api_returns(app: App, command: Command) -> None:
    asyncio.run(_execute(app))
    assert _cut_ages(command("ls")) == _cut_ages(asyncio.run(_request(app.replace(), "/runs")))
    page = command("ls", "--limit", "1")
    assert _cut_ages(page) == _cut_ages(asyncio.run(_request(app.replace(), "/runs?limit=1")))
    assert page["cursor"] is not None
    for run_id in ("done", "waits"):
        read = asyncio.run(_request(app.replace(), f"/runs/{run_id}"))
        assert _cut_ages(command("show", run_id)["run"]) == _cut_ages(read)


def test_the_progress_of_map_items_is_in_show_and_in_the_api(
    store: str, command: Command, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    @tool
    async def check(number: int) -> int:
        return 6 // number

    @workflow
    async def flow() -> int:
        return len(await map_items(check, range(3), return_exceptions=True))

    app = App([flow], store, worker=WorkerSettings(take_runs=False, handle_signals=False))
    app.run_sync(flow, run_id="mapped")
    progress = [{"name": "check", "done": 3, "total": 3, "failed": 1}]
    assert asyncio.run(_request(app.replace(), "/runs/mapped"))["progress"] == progress
    assert command("show", "mapped")["run"]["progress"] == progress
    build_program()(["show", "mapped", "--store", store], standalone_mode=False)
    assert "progress check 3 of 3, 1 failed" in capfdbinary.readouterr().out.decode().splitlines()


def test_a_change_prints_the_fields_that_the_api_returns(app: App, command: Command) -> None:
    asyncio.run(_execute(app))
    assert msgspec.convert(command("send", "waits", "hello"), MailReference).run_id == "waits"
    assert msgspec.convert(command("signal", "waits", "name", "1"), MailReference).run_id == "waits"
    assert msgspec.convert(command("approve", "waits", "c1"), RunReference).run_id == "waits"
    forked = msgspec.convert(command("fork", "done", "--at", "1", "--run-id", "forked"), RunReference)
    assert msgspec.convert(command("cancel", forked.run_id), RunReference).run_id == "forked"
    assert msgspec.convert(command("submit", "plain", "go", "--run-id", "new"), RunReference).run_id == "new"
    # `run` and `resume` print these, and more where the run is not done.
    assert set(RunResult.__struct_fields__) < set(CommandResult.__struct_fields__)
