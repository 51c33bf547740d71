"""A workflow whose code ends the process, or announces a shutdown, continues later: none of its steps is undone."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, WorkerSettings, tool
from holdfast.core.errors import RunFailed
from holdfast.workflows import Workflow, saga, workflow

_PROGRAM = """
import asyncio, sys
from pathlib import Path
from holdfast import App, tool
from holdfast.workflows import block_on, workflow

exits, place, ledger = sys.argv[1] == "exits", sys.argv[2], Path("ledger")


def note(text):
    with ledger.open("a") as file:
        file.write(text + "\\n")


def leave(here):
    if exits and place.startswith(here):
        raise KeyboardInterrupt if place.endswith("interrupt") else SystemExit(3)


def give_back(call, result):
    note("undone")


@tool(undo=give_back)
def pay(number: int) -> str:
    note(f"paid {number}")
    return "receipt"


async def look():
    leave("coroutine")


@workflow
def buy() -> str:
    pay(1)
    leave("body")
    block_on(look())
    return pay(2)


async def main():
    async with App([buy], "sqlite:runs.db") as app:
        note((await app.run(buy, run_id="r")).output)

asyncio.run(main())
"""


@pytest.mark.parametrize("place", ["body", "body interrupt", "coroutine", "coroutine interrupt"])
def test_an_exit_in_a_plain_workflow_leaves_it_for_the_next_process(place: str, tmp_path: Path) -> None:
    for life, expected in (("exits", "paid 1"), ("continues", "paid 1\npaid 2\nreceipt")):
        command = [sys.executable, "-c", _PROGRAM, life, place]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert (ended.returncode == 0) == (life == "continues"), ended.stderr
        assert (tmp_path / "ledger").read_text().strip() == expected, ended.stderr


class HostStops(Exception):
    """How the code of a host announces its shutdown."""


class Panic(BaseException):
    """What some compiled libraries raise: no `Exception`."""


made: list[str] = []
raised: list[BaseException] = []


async def give_back(call: Any, result: str) -> None:
    made.append("undone")


@tool(undo=give_back)
async def pay() -> str:
    made.append("paid")
    return "receipt"


@workflow
async def buy() -> str:
    receipt = await pay()
    if raised:
        raise raised.pop()
    return receipt


@workflow
async def buy_in_saga() -> str:
    async with saga():
        receipt = await pay()
        if raised:
            raise raised.pop()
    return receipt


@pytest.mark.parametrize("flow", [buy, buy_in_saga], ids=["body", "saga"])
async def test_a_shutdown_that_the_code_announces_undoes_nothing(flow: Workflow[str], tmp_path: Path) -> None:
    made.clear()
    raised[:] = [HostStops("deploy")]
    settings = WorkerSettings(take_runs=False, shutdown_exceptions=(HostStops,))
    async with asyncio.timeout(60), App([flow], f"sqlite:{tmp_path}/runs.db", worker=settings) as app:
        with pytest.raises(HostStops):
            await app.run(flow, run_id="r")
        assert made == ["paid"]
    async with asyncio.timeout(60), App([flow], f"sqlite:{tmp_path}/runs.db") as app:
        assert (await app.result("r")).output == "receipt"
        assert made == ["paid"]


@pytest.mark.parametrize("flow", [buy, buy_in_saga], ids=["body", "saga"])
async def test_an_error_that_is_no_exception_fails_the_workflow_and_undoes_its_steps(flow: Workflow[str]) -> None:
    made.clear()
    raised[:] = [Panic("index out of range")]
    async with asyncio.timeout(60), App([flow], "memory:") as app:
        with pytest.raises(RunFailed, match="Panic"):
            await app.run(flow)
        assert made == ["paid", "undone"]
