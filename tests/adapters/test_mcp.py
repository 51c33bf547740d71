"""Tools of an MCP server, over stdio. Their agent is killed in the middle of a batch: no finished call is repeated."""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.mcp_agent import BATCH, RUN

from holdfast import App
from holdfast.checkpoint.journal import EntryKind
from holdfast.checkpoint.store import RunStore, iter_runs
from holdfast.core.execution.calling.tool_calls import UNKNOWN_OUTCOME

#: Each test starts several processes that import pydantic-ai and the MCP library.
#: Calls of the batch that have taken effect, and whose answers never come.
HELD = ["look Bonn", "reserve Bonn", "pay Bonn", "ship Bonn"]
#: Calls of the batch that are answered.
FINISHED = ["look Lyon", "pay Lyon"]
#: The results of the others.
WARM, RESERVED, PAID, SHIPPED = "Bonn is warm", "reserved Bonn", {"paid": "Bonn"}, "shipped to Bonn"
FOUND = "it has left"


class Errands:
    """A folder that agents, MCP servers and the test share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._url = f"sqlite:{folder / 'runs.db'}"
        (folder / "world").touch()
        self._hold()

    def done(self) -> Counter[str]:
        """How often each call has reached the server, under each idempotency key."""
        return Counter((self._folder / "world").read_text().splitlines())

    def calls(self) -> Counter[str]:
        """How often each call has reached the server."""
        return Counter(line.rpartition(" ")[0] for line in (self._folder / "world").read_text().splitlines())

    def parents(self) -> list[int]:
        """The processes that started a server, in order."""
        return [int(line.split()[1]) for line in (self._folder / "servers").read_text().splitlines()]

    async def run_process(self, kind: str, **options: Any) -> Any:
        """Run the agent in a process, and return what it prints at its end."""
        process = await self._start(kind, options)
        out, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(out)

    async def killed_in_the_batch(self, **options: Any) -> int:
        """A process that is killed when two calls of the batch are recorded and the server is at the other four."""
        self._hold(*HELD)
        async with App([], self._url, worker=False) as app:
            assert app.store is not None
            process = await self._start("run", options)
            end = time.monotonic() + 60
            while len(self.done()) < len(BATCH) or await _results(app.store) < 2:
                assert time.monotonic() < end, f"there is only {self.done()}"
                assert process.returncode is None
                await asyncio.sleep(0.01)
            os.kill(process.pid, signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
            assert await _results(app.store) == 2
        assert self.calls() == Counter([*FINISHED, *HELD])
        self._hold()
        return process.pid

    def _hold(self, *calls: str) -> None:
        """From now on the server does not answer these."""
        (self._folder / "hold").write_text("\n".join(calls))

    async def _start(self, kind: str, options: dict[str, Any]) -> asyncio.subprocess.Process:
        program = ["-m", "tests.adapters.mcp_agent", str(self._folder), kind, json.dumps(options)]
        return await asyncio.create_subprocess_exec(sys.executable, *program, stdout=asyncio.subprocess.PIPE)


async def _results(store: RunStore) -> int:
    """How many calls of the batch are recorded."""
    if not [record async for record in iter_runs(store)]:
        return 0
    return sum(entry.kind is EntryKind.RESULT for entry in (await store.load(RUN)).entries)


@pytest.fixture
def errands(tmp_path: Path) -> Errands:
    return Errands(tmp_path)


async def test_each_tool_of_a_server_is_called_once(errands: Errands) -> None:
    result = await errands.run_process("run")
    assert (result["output"], result["asked"]) == ("done", 3)
    assert errands.calls() == Counter([*FINISHED, *HELD, "pay Faro"])
    assert len(errands.done()) == 7, "each call has a key of its own"
    assert len(errands.parents()) == 1


@pytest.mark.parametrize(
    ("options", "again", "results"),
    [
        pytest.param({}, ["look", "reserve"], [WARM, RESERVED, UNKNOWN_OUTCOME, FOUND], id="as the server hints"),
        pytest.param(
            {"effects": {"look": "once"}, "metadata": {"effect": "idempotent"}},
            ["reserve", "pay", "ship"],
            [UNKNOWN_OUTCOME, RESERVED, PAID, SHIPPED],
            id="as we say",
        ),
    ],
)
async def test_after_a_kill_in_a_batch_each_call_is_treated_as_its_effect_says(
    errands: Errands, options: dict[str, Any], again: list[str], results: list[Any]
) -> None:
    killed = await errands.killed_in_the_batch(**options)
    result = await errands.run_process("resume", **options)
    assert (result["output"], result["asked"]) == ("done", 2), "the reply with the batch is not asked for again"
    assert errands.calls() == Counter([*FINISHED, *HELD, *(f"{tool} Bonn" for tool in again), "pay Faro"])
    assert len(errands.done()) == 7, "a repeated call has the key it had"
    assert result["results"] == ["Lyon is warm", {"paid": "Lyon"}, *results, {"paid": "Faro"}]
    parents = errands.parents()
    assert (parents[0], len(set(parents))) == (killed, 2)


async def test_a_person_answers_for_a_call_in_doubt(errands: Errands) -> None:
    await errands.killed_in_the_batch(in_doubt="park")
    parked = await errands.run_process("resume", in_doubt="park")
    assert parked == {"parked": ["in doubt", "call c5 of pay may or may not have happened"]}
    result = await errands.run_process("answer", in_doubt="park")
    assert result["output"] == "done"
    assert result["results"][3:] == [RESERVED, {"paid": "by hand"}, FOUND, {"paid": "Faro"}]
    calls = errands.calls()
    assert [calls[once] for once in (*FINISHED, "pay Bonn", "ship Bonn", "pay Faro")] == [1] * 5
