"""Kills a run with transactions at every point: `python -m tests.core.workflow.transaction_trials KIND URL FOLDER`.

The points are before and after every write to the store, in the body of each transaction before and after its writes,
and between the end of the body and the commit. A second process finishes the run. Then the user's table is read from
outside: each row is there once.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import apsw
import psycopg
from tests.core.workflow.kill_trials import POINTS, KillingStore, run_in_process

from holdfast import Agent, App, Reply, ToolCall, tool
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.workers import Claim
from holdfast.stores.from_url import store_from_url
from holdfast.workflows import StepFailed, workflow


class KillingTransactions(KillingStore):
    async def transact(self, claim: Claim, function: Any, make_write: Any) -> Any:
        def make_write_and_reach(value: Any) -> Append:
            write: Append = make_write(value)
            POINTS.reach()
            return write

        POINTS.reach()
        value = await self._store.transact(claim, function, make_write_and_reach)
        POINTS.reach()
        return value


def insert(connection: Any, name: str) -> int:
    POINTS.reach()
    connection.execute("create table if not exists booked (name text)")
    connection.execute(f"insert into booked values ('{name}')")
    POINTS.reach()
    [found] = connection.execute(f"select count(*) from booked where name = '{name}'").fetchone()
    return int(found)


@tool(effect="transaction")
def book(seat: str, connection: Any = None) -> int:
    return insert(connection, seat)


@tool(effect="transaction")
def fail(seat: str, connection: Any = None) -> int:
    insert(connection, seat)
    raise LookupError(seat)


@workflow
async def travel(seats: list[str]) -> dict[str, Any]:
    first = await book("first")
    booked = await asyncio.gather(*(book(seat) for seat in seats))
    try:
        await fail("failed")
    except StepFailed as exc:
        failed = exc.type_name
    return {"first": first, "booked": booked, "failed": failed}


async def model(messages: Any, tools: Any) -> Reply:
    if len(messages) == 1:
        names = ["4a", "4b", "4c"]
        calls = [ToolCall(id=name, name="book", arguments={"seat": name}) for name in names]
        return Reply(tool_calls=(*calls, ToolCall(id="5", name="fail", arguments={"seat": "5"})))
    return Reply(text=json.dumps([message.content for message in messages[2:]]))


clerk = Agent(name="clerk", model=model, tools=[book, fail])


def read_table(url: str, statement: str) -> list[Any]:
    """Execute a statement from outside. No process of holdfast has the database open."""
    if url.startswith("sqlite:"):
        return apsw.Connection(url.removeprefix("sqlite:")).execute(statement).fetchall()
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


async def run(kind: str, url: str, report: Path) -> None:
    async with App([travel, clerk], KillingTransactions(store_from_url(url)), worker=False) as app:
        if kind == "workflow":
            result = await app.run(travel, inputs={"seats": ["2a", "2b"]}, run_id=report.parent.name)
        else:
            result = await app.run(clerk, "book", run_id=report.parent.name)
        report.write_text(json.dumps(result.output))


def make_trial(kind: str, template: str, root: Path, kill_at: int) -> dict[str, Any]:
    folder = root / f"trial-{kill_at}"
    folder.mkdir()
    url = template.replace("{folder}", str(folder))
    if not url.startswith("sqlite:"):
        read_table(url, "drop table if exists booked")
    report = folder / "output.json"
    killed, points = run_in_process(run(kind, url, report), folder, kill_at)
    if kill_at and not killed:
        return {"killed": False}
    if kill_at:
        run_in_process(run(kind, url, report), folder, 0)
    rows = sorted(name for (name,) in read_table(url, "select name from booked"))
    return {"killed": killed, "points": points, "output": json.loads(report.read_text()), "rows": rows}


def main(kind: str, template: str, folder: str, stride: str) -> None:
    root = Path(folder)
    baseline = make_trial(kind, template, root, 0)
    trials = [make_trial(kind, template, root, at) for at in range(1, baseline["points"] + 1, int(stride))]
    print(json.dumps({"baseline": baseline, "trials": trials}))


if __name__ == "__main__":
    main(*sys.argv[1:])
