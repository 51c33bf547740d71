"""Kills a workflow at every point of its life: `python -m tests.core.workflow.kill_trials URL_TEMPLATE FOLDER STRIDE`.

The points are before and after every write to the store, and at the start and the end of every tool's body. Each trial
has a store of its own, is killed with SIGKILL at its point, and is finished by a second process. Ledgers outside the
store count the effects.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import NOT_EXECUTED, App, Completed, tool
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import Release
from holdfast.checkpoint.workers import Claim
from holdfast.core.agents.calls import Reconciliation
from holdfast.core.agents.tool_context import ToolContext
from holdfast.stores.from_url import store_from_url
from holdfast.stores.wrapper import StoreWrapper
from holdfast.workflows import StepFailed, call, first, now, sleep, uuid4, workflow


class Points:
    """Counts the points that a process reaches, and kills it at one of them."""

    def __init__(self) -> None:
        self.count, self.kill_at, self.ledger = 0, 0, Path()

    def reach(self) -> None:
        self.count += 1
        if self.count == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, line: str) -> None:
        with self.ledger.open("a") as file:
            file.write(f"{line}\n")
            os.fsync(file.fileno())

    def read(self) -> list[str]:
        return self.ledger.read_text().splitlines() if self.ledger.exists() else []


POINTS = Points()


class KillingStore(StoreWrapper):
    async def append(self, claim: Claim, write: Append) -> None:
        POINTS.reach()
        await self._store.append(claim, write)
        POINTS.reach()

    async def release(self, claim: Claim, release: Release) -> None:
        POINTS.reach()
        await self._store.release(claim, release)
        POINTS.reach()


@dataclass
class Receipt:
    order: str
    euro: int


async def find_charge(context: ToolContext) -> Completed | Reconciliation:
    order, euro = context.arguments["order"], context.arguments["euro"]
    return Completed({"order": order, "euro": euro}) if f"charge {order} {euro}" in POINTS.read() else NOT_EXECUTED


@tool(reconcile=find_charge)
async def charge(order: str, euro: int) -> Receipt:
    POINTS.reach()
    POINTS.write(f"charge {order} {euro}")
    POINTS.reach()
    return Receipt(order, euro)


@tool(effect="pure")
async def search(city: str) -> str:
    POINTS.reach()
    await asyncio.sleep(0)
    return f"{city}?"


class Declined(Exception):
    pass


@tool(effect="idempotent", errors=[Declined])
def decline(card: str) -> str:
    POINTS.reach()
    raise Declined(card, 402)


def add(left: int, right: int) -> int:
    return left + right


async def branch(number: int) -> Receipt:
    """Finds the price, and pays: in parallel with other branches, in any order."""
    found = await search(f"city {number}")
    receipt: Receipt = await charge(found, number)
    return receipt


@workflow
async def shop(cities: list[int]) -> dict[str, Any]:
    at, key = await now(), await uuid4()
    receipts = await asyncio.gather(*(branch(number) for number in cities))
    try:
        await decline("4711")
    except Declined as exc:
        declined = exc.args
    winner, _ = await first(slow=sleep(4), fast=sleep(0.01), other=branch(9))
    total = await call("total", add, sum(each.euro for each in receipts), 1, effect="pure")
    try:
        await charge("again", total)
        failed = ""
    except StepFailed as exc:
        failed = str(exc)
    return {
        "same": [at.isoformat(), str(key)],
        "receipts": [[each.order, each.euro] for each in receipts],
        "declined": list(declined),
        "winner": winner in ("fast", "other"),
        "total": total,
        "failed": failed,
    }


async def run(url: str, report: Path, run_id: str) -> None:
    async with App([shop], KillingStore(store_from_url(url)), worker=False) as app:
        result = await app.run(shop, inputs={"cities": [1, 2, 3]}, run_id=run_id)
        report.write_text(json.dumps(result.output))


def run_in_process(work: Coroutine[Any, Any, None], folder: Path, kill_at: int) -> tuple[bool, int]:
    """Return whether the process that did this work was killed, and the number of points that it reached."""
    pid = os.fork()
    if pid == 0:
        POINTS.kill_at, POINTS.ledger = kill_at, folder / "ledger"
        asyncio.run(work)
        (folder / "points").write_text(str(POINTS.count))
        os._exit(0)
    work.close()
    _, status = os.waitpid(pid, 0)
    reached = int((folder / "points").read_text()) if (folder / "points").exists() else 0
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, reached


def make_trial(template: str, root: Path, kill_at: int) -> dict[str, Any]:
    folder = root / f"trial-{kill_at}"
    folder.mkdir()
    url = template.replace("{folder}", str(folder))
    report = folder / "output.json"
    killed, points = run_in_process(run(url, report, folder.name), folder, kill_at)
    if kill_at and not killed:
        return {"killed": False}
    if kill_at:
        _, points = run_in_process(run(url, report, folder.name), folder, 0)
    output = json.loads(report.read_text())
    ledger = (folder / "ledger").read_text().splitlines()
    return {"killed": bool(kill_at), "points": points, "output": output, "ledger": ledger}


def main(template: str, root: str, stride: int) -> None:
    baseline = make_trial(template, Path(root), 0)
    trials = [make_trial(template, Path(root), number) for number in range(1, baseline["points"] + 1, stride)]
    print(json.dumps({"baseline": baseline, "trials": trials}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
