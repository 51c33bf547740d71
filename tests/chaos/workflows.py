"""Many workflows at once under random SIGKILL: `python -m tests.chaos.workflows SECONDS [sqlite|postgres] [SEED]`.

Workers execute workflows that pay, fail, undo, race, restart, wait and start children. The program kills workers at
random times, cancels some runs, resolves calls in doubt by the ledger as a person would, and compares all ends with it.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.store_kinds import STORES

from holdfast import NOT_EXECUTED, App, Completed, WorkerSettings, tool
from holdfast.checkpoint.errors import CheckpointError
from holdfast.core.agents.calls import Reconciliation
from holdfast.core.agents.tool_context import ToolContext, current_call
from holdfast.core.run.status import RunStatus
from holdfast.runtime.operations.run_client import RunClient
from holdfast.stores.from_url import store_from_url
from holdfast.workflows import Restart, StepFailed, Workflow, first, map_items, run_agent, saga, sleep, start, workflow

LEDGER = Path(os.environ.get("HOLDFAST_CHAOS_LEDGER", "ledger"))

ENDED = (RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED)


def write(line: str) -> None:
    file = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, f"{line}\n".encode())  # O_APPEND: one write is one line
    finally:
        os.close(file)


def read() -> list[str]:
    return LEDGER.read_text().splitlines() if LEDGER.exists() else []


async def pause() -> None:
    await asyncio.sleep(random.random() * 0.03)


async def find_payment(call: ToolContext) -> Completed | Reconciliation:
    paid = f"pay {call.run_id} {call.arguments['name']}" in read()
    return Completed(f"receipt {call.arguments['name']}") if paid else NOT_EXECUTED


async def pay_back(call: ToolContext, receipt: str) -> None:
    await pause()
    write(f"undo {call.run_id} {receipt.removeprefix('receipt ')} {call.idempotency_key}")
    await pause()


async def make_payment(name: str) -> str:
    await pause()
    write(f"pay {current_call().run_id} {name}")
    await pause()
    return f"receipt {name}"


@tool(reconcile=find_payment, undo=pay_back)
async def pay(name: str) -> str:
    return await make_payment(name)


@tool(undo=pay_back)
async def pay_blindly(name: str) -> str:
    """Only a person can say whether it has happened."""
    return await make_payment(name)


async def race(number: int) -> str:
    async def lose() -> str:
        await sleep(timedelta(hours=1))
        return str(await pay(f"never-{number}"))

    async def win() -> list[str]:
        return list(await asyncio.gather(pay(f"left-{number}"), pay(f"right-{number}")))

    winner, _ = await first(win=win(), lose=lose())
    return winner


@workflow
async def shop(fails: bool) -> list[Any]:
    """Everything in one function. All that it has paid is paid back if it fails."""
    found: list[Any] = await map_items(pay, [f"item-{number}" for number in range(3)], limit=2)
    found.append(await pay_blindly.keyed("blind")("blind"))
    found += [await race(number) for number in range(2)]
    try:
        async with saga():
            await pay("saga")
            raise ValueError("no")
    except ValueError:
        pass
    started = await start(child, inputs={"fails": False, "name": "started"})
    await sleep(0.05)
    found.append(await run_agent(child, inputs={"fails": False, "name": "run"}))
    with suppress(StepFailed):
        await run_agent(child, inputs={"fails": True, "name": "failed"})
    found.append(await started.result())
    if fails:
        raise ValueError("no")
    return found


@workflow
async def child(name: str, fails: bool) -> str:
    paid = await pay(name)
    if fails:
        raise ValueError("no")
    return str(paid)


@workflow
async def lives(number: int) -> str | Restart:
    await pay(f"life-{number}")
    await sleep(0.05)
    return Restart(number + 1) if number < 3 else "done"


@workflow
async def linger() -> str:
    """Is cancelled while it waits, and pays back."""
    await asyncio.gather(pay("a"), pay("b"))
    await sleep(timedelta(hours=1))
    return "never"


FLOWS: list[Workflow[Any]] = [shop, child, lives, linger]

#: The payments that stay, and those that are paid back, of each kind of run.
ITEMS = {"item-0", "item-1", "item-2", "blind", "left-0", "right-0", "left-1", "right-1"}
KEPT = {
    "shop": (ITEMS, {"saga"}),
    "shop-fails": (set[str](), ITEMS | {"saga"}),
    "lives": ({"life-1", "life-2", "life-3"}, set[str]()),
    "linger": (set[str](), {"a", "b"}),
}
ENDS = {"shop": "done", "shop-fails": "failed", "lives": "done", "linger": "cancelled"}
INPUTS: dict[str, dict[str, Any]] = {
    "shop": {"fails": False},
    "shop-fails": {"fails": True},
    "lives": {"number": 1},
    "linger": {},
}


def find_faults(ends: dict[str, str]) -> list[str]:
    """Compare the ends of the runs, by run id, with the ledger."""
    paid: Counter[tuple[str, str]] = Counter()
    undone: dict[tuple[str, str], set[str]] = {}
    for line in read():
        verb, run_id, name, *key = line.split()
        if verb == "pay":
            paid[run_id, name] += 1
        else:
            undone.setdefault((run_id, name), set()).update(key)
    faults = [f"{place} was paid {count} times" for place, count in paid.items() if count > 1]
    faults += [f"{place} was paid back with {len(keys)} keys" for place, keys in undone.items() if len(keys) > 1]
    faults += [f"{place} was paid back and never paid" for place in undone if place not in paid]
    for run_id, end in ends.items():
        kind = run_id.partition(".")[0]
        if ":" in run_id or kind not in KEPT:
            continue
        kept, back = KEPT[kind]
        mine = {name for owner, name in paid if owner == run_id}
        returned = {name for owner, name in undone if owner == run_id}
        if end != ENDS[kind]:
            faults.append(f"{run_id} is {end}, not {ENDS[kind]}")
        if mine != kept | back or returned != back:
            faults.append(f"{run_id} has paid {sorted(mine)} and paid back {sorted(returned)}")
    children = [place for place in paid if ":" in place[0]]
    faults += [
        f"{place} of a failed child was not paid back"
        for place in children
        if "failed" in place[1] and place not in undone
    ]
    return faults


class Fleet:
    """Workers that are killed and replaced."""

    def __init__(self, url: str, folder: Path, size: int) -> None:
        self._url, self._folder = url, folder
        self.workers = [self._start() for _ in range(size)]
        self.kills = 0

    def _start(self) -> "subprocess.Popen[bytes]":
        with (self._folder / "workers.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.workflows", "work", self._url],
                stdout=log,
                stderr=log,
                env=os.environ | {"HOLDFAST_CHAOS_LEDGER": str(self._folder / "ledger")},
            )

    def kill(self, number: int) -> None:
        self.workers[number].send_signal(signal.SIGKILL)
        self.workers[number].wait()
        self.workers[number] = self._start()
        self.kills += 1

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


async def work(url: str) -> None:
    async with App(FLOWS, store_from_url(url), worker=WorkerSettings(concurrency=20)) as app:
        await app.serve()


class Person:
    """Cancels runs that are to be cancelled, and resolves calls in doubt after a look at the ledger."""

    def __init__(self, client: RunClient) -> None:
        self._client, self.resolved, self.cancelled = client, 0, 0

    async def look(self, run_ids: set[str]) -> dict[str, str]:
        """Return the ends of the runs that have ended."""
        ends: dict[str, str] = {}
        for run_id in run_ids:
            run = await self._client.get(run_id)
            if run.status in ENDED:
                ends[run_id] = run.status.value
            elif run.status is RunStatus.PARKED:
                await self._resolve(run_id, [call.call_id for call in run.pending_calls if call.tool == "pay_blindly"])
            elif run.status is RunStatus.WAITING and run_id.startswith("linger"):
                with suppress(CheckpointError):
                    await self._client.cancel(run_id)
                    self.cancelled += 1
        return ends

    async def _resolve(self, run_id: str, call_ids: list[str]) -> None:
        paid = f"pay {run_id} blind" in read()
        with suppress(CheckpointError):
            await self._client.unpark(run_id, dict.fromkeys(call_ids, "receipt blind" if paid else NOT_EXECUTED))
            self.resolved += 1


async def disrupt(url: str, folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Keep some runs in progress and kill workers for this time; then let all runs end. Return the counts."""
    rng, fleet = random.Random(seed), Fleet(url, folder, 3)
    ends: dict[str, str] = {}
    try:
        async with RunClient.open(store_from_url(url), {flow.name: flow for flow in FLOWS}) as client:
            person, active, number = Person(client), set[str](), 0
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline or active:
                while time.monotonic() < deadline and len(active) < 20:
                    kind = rng.choice(list(KEPT))
                    run_id = f"{kind}.{number}"
                    await client.submit(kind.partition("-")[0], inputs=INPUTS[kind], run_id=run_id)
                    active.add(run_id)
                    number += 1
                await asyncio.sleep(rng.uniform(0.1, 0.8))
                if time.monotonic() < deadline:
                    fleet.kill(rng.randrange(len(fleet.workers)))
                elif time.monotonic() > deadline + 300:
                    break
                ended = await person.look(active)
                ends |= ended
                active -= set(ended)
            left = {run_id: (await client.get(run_id)).description for run_id in active}
            unended = (await client.list(status=["queued", "running", "interrupted", "waiting", "parked"])).runs
            others = [f"{run.run_id} {run.status}" for run in unended]
    finally:
        fleet.close()
    counts = Counter(f"{run_id.partition('.')[0]} {end}" for run_id, end in ends.items())
    lines = Counter(line.partition(" ")[0] for line in read())
    return {
        "runs": len(ends),
        "kills": fleet.kills,
        "ends": dict(counts),
        "resolved": person.resolved,
        "cancelled": person.cancelled,
        "ledger": dict(lines),
        "left": left,
        "others": others,
        "faults": find_faults(ends),
    }


def main(seconds: float, kind: str, seed: int) -> int:
    global LEDGER
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        LEDGER = folder / "ledger"
        with STORES[kind].open_empty(folder) as url:
            report = asyncio.run(disrupt(url, folder, seconds, seed))
        print(json.dumps({"store": kind, "seed": seed, **report}, indent=1))
        return 1 if report["faults"] or report["left"] or report["others"] else 0


if __name__ == "__main__":
    if sys.argv[1] == "work":
        asyncio.run(work(sys.argv[2]))
    else:
        sys.exit(main(float(sys.argv[1]), (sys.argv[2:] or ["sqlite"])[0], int((sys.argv[3:] or ["1"])[0])))
