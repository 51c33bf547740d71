"""Every reader describes a run in the same words: commands, API, MCP tools and pages."""

import asyncio
import html
import json
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from mcp.types import CallToolResult, TextContent

from holdfast import Agent, App, Approve, Reply, RunWaiting, ToolCall, WorkerSettings, tool
from holdfast.checkpoint.record import Release, RunStatus
from holdfast.cli.program import build_program
from holdfast.core import Message, ToolSchema
from holdfast.errors import RunFailed
from holdfast.mcp.server import make_server
from holdfast.web.auth import LOCAL_PRINCIPAL

#: What each run of the fixture does, waits for or needs.
DESCRIPTIONS = {
    "waits": "waits for approval of pay(euros=7), ",
    "approved": "ready for a worker",
    "parked": "poison: 4 owners in a row died",
    "failed": "RuntimeError: the model is down",
    "done": "finished after 1 step, kept until ",
}


@tool(approval=True)
def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    if messages[-1].text == "fail":  # type: ignore[union-attr]
        raise RuntimeError("the model is down")
    calls = [ToolCall(id="c1", name="pay", arguments={"euros": 7})] if tools else []
    return Reply(text="done", tool_calls=calls)


def make_app(store: str) -> App:
    agents = [Agent(name="plain", model=model), Agent(name="payer", model=model, tools=[pay])]
    return App(agents, store, worker=WorkerSettings(take_runs=False, handle_signals=False))


async def make_runs(store: str) -> None:
    async with make_app(store) as app:
        await app.run("plain", "go", run_id="done")
        with pytest.raises(RunFailed):
            await app.run("plain", "fail", run_id="failed")
        for run_id in ("waits", "approved"):
            with pytest.raises(RunWaiting):
                await app.run("payer", "go", run_id=run_id)
        await app.answer("approved", "c1", Approve())
        await app.submit("plain", "go", run_id="parked")
        assert app.store is not None
        [worker] = (await app.store.read_fleet()).workers
        claim = await app.store.claim("parked", worker.worker.worker_id)
        await app.store.release(claim, Release(status=RunStatus.PARKED, reason=DESCRIPTIONS["parked"]))


class Readers:
    """Each method returns what one reader says of a run, as plain text."""

    def __init__(self, store: str, capfd: pytest.CaptureFixture[str]) -> None:
        self._store, self._capfd = store, capfd

    def _run(self, *arguments: str) -> str:
        self._capfd.readouterr()
        build_program()([*arguments, "--store", self._store], standalone_mode=False)
        return self._capfd.readouterr().out

    def _get(self, path: str) -> str:
        async def get() -> str:
            async with make_app(self._store) as app:
                site = httpx.ASGITransport(app.web(authorize=lambda request: LOCAL_PRINCIPAL))
                async with httpx.AsyncClient(transport=site, base_url="http://localhost") as client:
                    return (await client.get(path)).raise_for_status().text

        return asyncio.run(get())

    def _read_page(self, path: str) -> str:
        return html.unescape(re.sub("<[^>]+>", "", self._get(path)))

    def ls(self, run_id: str) -> str:
        return next(line for line in self._run("ls").splitlines() if line.startswith(run_id))

    def ls_json(self, run_id: str) -> str:
        runs = json.loads(self._run("ls", "--json"))["runs"]
        return next(str(run["description"]) for run in runs if run["run_id"] == run_id)

    def show(self, run_id: str) -> str:
        return self._run("show", run_id)

    def api(self, run_id: str) -> str:
        return str(json.loads(self._get(f"/api/runs/{run_id}"))["description"])

    def mcp(self, run_id: str) -> str:
        async def read() -> str:
            async with make_app(self._store) as app:
                found = await make_server(app).call_tool("list_runs", {})
                assert isinstance(found, CallToolResult)
                assert isinstance(found.content[0], TextContent)
                runs = json.loads(found.content[0].text)["runs"]
                return next(str(run["description"]) for run in runs if run["run_id"] == run_id)

        return asyncio.run(read())

    def list_page(self, run_id: str) -> str:
        return self._read_page(f"/?q={run_id}")

    def run_page(self, run_id: str) -> str:
        return self._read_page(f"/runs/{run_id}")

    def export_page(self, run_id: str) -> str:
        return self._read_page(f"/runs/{run_id}/export.html")

    def top(self, run_id: str) -> str:
        return next(line for line in self._run("top").splitlines() if line.startswith(run_id))


@pytest.fixture
def readers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Readers]:
    store = f"sqlite:{tmp_path / 'runs.db'}"
    asyncio.run(make_runs(store))
    log = logging.getLogger("holdfast")
    handlers, propagate = list(log.handlers), log.propagate
    yield Readers(store, capfd)
    log.handlers[:], log.propagate = handlers, propagate


@pytest.mark.parametrize("reader", ["ls", "ls_json", "show", "api", "mcp", "list_page", "run_page", "export_page"])
def test_a_run_is_described_in_the_same_words(readers: Readers, reader: str) -> None:
    for run_id, words in DESCRIPTIONS.items():
        assert words in getattr(readers, reader)(run_id), run_id


def test_the_page_of_a_run_asks_for_no_answer_that_it_has(readers: Readers) -> None:
    assert "Approve" in readers.run_page("waits")
    assert "Approve" not in readers.run_page("approved")


def test_top_describes_a_stuck_run_in_the_same_words(readers: Readers) -> None:
    assert readers.top("parked").endswith(DESCRIPTIONS["parked"])
