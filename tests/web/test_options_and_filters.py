"""Every option of a new run and every condition of a listing works in each place that takes them."""

import asyncio
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, get_type_hints

import httpx
import msgspec
import pytest
from mcp.types import CallToolResult, TextContent

from holdfast import Agent, App, Reply, RunInfo, WorkerSettings
from holdfast.checkpoint.codec import decode_begin, encode, encode_begin
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import NewRun, Release, RunStatus
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.cli.program import build_program
from holdfast.core import RunOptions
from holdfast.core.run.info import RequestOptions
from holdfast.mcp.server import make_server
from holdfast.results import RunQuery
from holdfast.runtime.reading.query_fields import encode_query
from holdfast.web.auth import LOCAL_PRINCIPAL
from holdfast.web.ui.pages.run_filter import parse_filter
from holdfast.web.wire import RunRequestBody

#: A value of each option that is not its default.
OPTIONS: dict[str, Any] = {
    "caller_id": "ann",
    "channel_id": "channel-1",
    "guild_id": "guild-1",
    "labels": {"team": "red"},
    "priority": 3,
    "concurrency_key": "key-1",
}
#: How the command line takes the options whose names are not theirs.
FLAGS = {"caller_id": "--caller", "channel_id": "--channel", "guild_id": "--guild", "concurrency_key": "--key"}

#: A condition that only the run `wanted` fulfils.
QUERY: dict[str, Any] = {
    "status": "done",
    "agent": "second",
    "caller": "ann",
    "parent": "early",
    "forked_from": "early",
    "labels": {"team": "red"},
}
EXPECTED = {name: ["wanted"] for name in (*QUERY, "since")} | {"until": ["early"]}


async def model(*_: object) -> Reply:
    return Reply(text="done")


class Host:
    """A store and what reads and writes it."""

    def __init__(self, store: str, capfd: pytest.CaptureFixture[str]) -> None:
        self._url, self._capfd = store, capfd

    def make_app(self) -> App:
        agents = [Agent(name="first", model=model), Agent(name="second", model=model)]
        return App(agents, self._url, worker=WorkerSettings(take_runs=False, handle_signals=False))

    def command(self, *arguments: str) -> Any:
        self._capfd.readouterr()
        build_program()([*arguments, "--store", self._url, "--json"], standalone_mode=False)
        return json.loads(self._capfd.readouterr().out)

    def request(self, method: str, path: str, **request: Any) -> Any:
        async def send() -> Any:
            async with self.make_app() as app:
                site = httpx.ASGITransport(app.web(authorize=lambda _: LOCAL_PRINCIPAL))
                async with httpx.AsyncClient(transport=site, base_url="http://localhost") as client:
                    return (await client.request(method, f"/api{path}", **request)).raise_for_status().json()

        return asyncio.run(send())

    def read_info(self, run_id: str) -> RunInfo:
        async def read() -> RunInfo:
            async with self.make_app() as app:
                assert app.store is not None
                return decode_begin(await app.store.load(run_id)).info

        return asyncio.run(read())


@pytest.fixture
def host(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Host]:
    log = logging.getLogger("holdfast")
    handlers, propagate = list(log.handlers), log.propagate
    yield Host(f"sqlite:{tmp_path / 'runs.db'}", capfd)
    log.handlers[:], log.propagate = handlers, propagate


@pytest.mark.parametrize("option", get_type_hints(RunOptions))
def test_an_option_reaches_the_run_from_app_and_command_line(host: Host, option: str) -> None:
    async def submit() -> None:
        async with host.make_app() as app:
            await app.submit("first", "go", run_id="by-app", **{option: OPTIONS[option]})

    asyncio.run(submit())
    value = "team=red" if option == "labels" else str(OPTIONS[option])
    flag = FLAGS.get(option, f"--{option.removesuffix('s')}")
    host.command("submit", "first", "go", "--run-id", "by-command", flag, value)
    for run_id in ("by-app", "by-command"):
        assert getattr(host.read_info(run_id), option) == OPTIONS[option]


@pytest.mark.parametrize("option", get_type_hints(RequestOptions))
def test_an_option_reaches_the_run_from_a_request(host: Host, option: str) -> None:
    fields: dict[str, Any] = {"agent": "first", "input": "go", option: OPTIONS[option]}
    body = RunRequestBody(**fields)
    headers = {"content-type": "application/json", "idempotency-key": "by-request"}
    host.request("POST", "/runs", content=msgspec.json.encode(body), headers=headers)
    assert getattr(host.read_info("by-request"), option) == OPTIONS[option]


def test_a_request_has_the_options_that_are_given_after_its_own_fields() -> None:
    body = RunRequestBody(agent="first", input="go", priority=3)
    assert msgspec.json.encode(body) == b'{"agent":"first","input":"go","priority":3}'


def test_an_option_that_does_not_exist_is_refused(host: Host) -> None:
    with pytest.raises(httpx.HTTPStatusError, match="422"):
        host.request("POST", "/runs", json={"agent": "first", "input": "go", "lables": {}})


async def create_run(store: RunStore, worker_id: str, info: RunInfo) -> None:
    begin = Entry(seq=0, kind=EntryKind.BEGIN, body=encode_begin(info))
    await store.create(NewRun.create(info, encode(Progress()), [begin]))
    claim = await store.claim(info.run_id, worker_id)
    status = RunStatus.DONE if info.run_id == "wanted" else RunStatus.FAILED
    await store.release(claim, Release(status=status))


async def pass_time(store: RunStore, worker_id: str) -> None:
    """Return when a new run is younger than `early`."""
    early = (await get_record(store, "early")).created_at
    while True:
        await create_run(store, worker_id, RunInfo(run_id="tick", agent_name="first"))
        now = (await get_record(store, "tick")).created_at
        await store.remove("tick")
        if now > early:
            return


async def create_runs(app: App) -> datetime:
    """Create two runs, and return the time at which the second one began to exist."""
    async with app:
        assert app.store is not None
        [worker] = (await app.store.read_fleet()).workers
        worker_id = worker.worker.worker_id
        await create_run(app.store, worker_id, RunInfo(run_id="early", agent_name="first"))
        await pass_time(app.store, worker_id)
        options: dict[str, Any] = {"caller_id": "ann", "labels": {"team": "red"}}
        info = RunInfo(run_id="wanted", agent_name="second", parent_run_id="early", forked_from="early", **options)
        await create_run(app.store, worker_id, info)
        return (await get_record(app.store, "wanted")).created_at


@pytest.mark.parametrize("name", get_type_hints(RunQuery))
def test_a_condition_holds_for_every_reader(host: Host, name: str) -> None:
    middle = asyncio.run(create_runs(host.make_app()))
    value = middle if name in ("since", "until") else QUERY[name]
    query: Any = {name: value}
    as_text = value.isoformat() if isinstance(value, datetime) else "team=red" if name == "labels" else value
    found = {
        "App": asyncio.run(list_in_app(host.make_app(), query)),
        "API": host.request("GET", "/runs", params=encode_query(query)),
        "ls": host.command("ls", "--label" if name == "labels" else f"--{name.replace('_', '-')}", as_text),
        "MCP": asyncio.run(list_with_mcp(host.make_app(), msgspec.to_builtins(query))),
    }
    assert {reader: [run["run_id"] for run in page["runs"]] for reader, page in found.items()} == dict.fromkeys(
        found, EXPECTED[name]
    )


def test_the_filter_of_the_page_has_every_condition() -> None:
    texts = {name: f"{name}:{value}" for name, value in QUERY.items() if isinstance(value, str) and name != "status"}
    times = {name: f"{name}:2026-01-01" for name in ("since", "until")}
    text = " ".join([*texts.values(), *times.values(), "label.team:red"])
    query = parse_filter(text, "done", datetime.now().astimezone()).to_query()
    assert set(query) == set(get_type_hints(RunQuery))


async def list_in_app(app: App, query: Any) -> Any:
    async with app:
        return msgspec.to_builtins(await app.list(**query))


async def list_with_mcp(app: App, query: dict[str, Any]) -> Any:
    async with app:
        found = await make_server(app).call_tool("list_runs", query)
        assert isinstance(found, CallToolResult)
        assert isinstance(found.content[0], TextContent)
        return json.loads(found.content[0].text)
