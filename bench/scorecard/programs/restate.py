"""Restate: a workflow with a `ctx.run` for each effect and a durable promise for the approval.

Only the process with the handlers is killed. The server runs beside it, as PostgreSQL does for others.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import restate
from bench.scorecard.ledger import BATCH, EFFECTS, LAST, Ledger
from bench.scorecard.programs.command import Place, main, sleep_for_turn, wait_for_end
from bench.systems.restate.server import Server, free_port, listening

FOLDER = Path(sys.argv[2])
order = restate.Workflow("order")


@order.main()
async def run(ctx: restate.WorkflowContext, nothing: None) -> str:
    ledger = Ledger(FOLDER / ctx.key())

    async def perform(effect: str) -> str:
        if effect in BATCH:
            await sleep_for_turn(effect)
        return ledger.perform(effect)

    def take(effect: str) -> Any:
        return ctx.run_typed(effect, perform, restate.RunOptions(type_hint=str), effect)

    for effect in EFFECTS[:5]:
        await take(effect)
    await ctx.promise("approval", type_hint=bool)
    await take("pay")
    await take("model-3")
    await restate.gather(*map(take, BATCH))
    result: str = await take(LAST)
    return result


@order.handler()
async def decide(ctx: restate.WorkflowSharedContext, approved: bool) -> None:
    await ctx.promise("approval", type_hint=bool).resolve(approved)


async def serve(place: Place) -> None:
    """Run the server until SIGTERM."""
    server = Server({"folder": str(place.store)})
    await server.ready()
    if not (place.folder / "port").exists():
        (place.folder / "port").write_text(str(free_port()))
    ready = place.folder / "starting"
    ready.write_text(f"{server.ingress} {server.admin}")
    ready.rename(place.folder / "addresses")  # at once, for those who wait for it
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    (place.folder / "addresses").unlink()
    await server.stop(orderly=True)


async def find_server(place: Place) -> tuple[str, str]:
    addresses = place.folder / "addresses"
    while not addresses.exists():
        await asyncio.sleep(0.05)
    ingress, admin = addresses.read_text().split()
    return f"http://{ingress}", f"http://{admin}"


async def submit(place: Place) -> str:
    ingress, admin = await find_server(place)
    port = int((place.folder / "port").read_text())
    async with listening(port, order), httpx.AsyncClient(timeout=60) as client:
        known = {"uri": f"http://127.0.0.1:{port}"}
        (await client.post(f"{admin}/deployments", json=known)).raise_for_status()
        (await client.post(f"{ingress}/order/{place.run_id}/run/send")).raise_for_status()
        answer = await client.get(f"{ingress}/restate/workflow/order/{place.run_id}/attach")
        return str(answer.raise_for_status().json())


async def work(place: Place) -> None:
    async with listening(int((place.folder / "port").read_text()), order):
        await wait_for_end(place.ledger)


async def approve(place: Place) -> None:
    ingress, _ = await find_server(place)
    while "model-1" not in place.ledger.read():
        await asyncio.sleep(0.05)
    async with httpx.AsyncClient(timeout=60) as client:
        for _ in range(2):
            await client.post(f"{ingress}/order/{place.run_id}/decide", json=True)


if __name__ == "__main__":
    main(submit=submit, work=work, approve=approve, serve=serve)
