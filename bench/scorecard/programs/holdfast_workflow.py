"""holdfast: a workflow, on SQLite with its defaults. A person decides about a payment in doubt."""

import asyncio

from bench.scorecard.ledger import BATCH, EFFECTS, LAST, Ledger
from bench.scorecard.programs.command import Place, main, sleep_for_turn, wait_for_end

from holdfast import App, Approve, tool
from holdfast.core.run.status import RunStatus
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.run_client import RunClient
from holdfast.workflows import Workflow, workflow


def make_workflow(ledger: Ledger) -> Workflow:
    @tool(effect="pure")
    async def look(effect: str) -> str:
        return ledger.perform(effect)

    @tool(effect="idempotent")
    async def ask_model(effect: str) -> str:
        return ledger.perform(effect)

    @tool(effect="idempotent")
    async def fetch(effect: str) -> str:
        await sleep_for_turn(effect)
        return ledger.perform(effect)

    @tool(approval=True)
    async def pay(effect: str) -> str:
        return ledger.perform(effect)

    @workflow
    async def order() -> str:
        await ask_model("model-1")
        for effect in EFFECTS[1:4]:
            await look(effect)
        await ask_model("model-2")
        await pay("pay")
        await ask_model("model-3")
        await asyncio.gather(*map(fetch, BATCH))
        return await ask_model(LAST)

    return order


def store_url(place: Place) -> str:
    return f"sqlite:{place.store / 'runs.db'}"


async def submit(place: Place) -> str:
    async with App([make_workflow(place.ledger)], store_url(place)) as app:
        return str((await app.run("order", run_id=place.run_id, through_waits=True)).output)


async def work(place: Place) -> None:
    async with App([make_workflow(place.ledger)], store_url(place)):
        await wait_for_end(place.ledger)


async def approve(place: Place) -> None:
    """Approve the payment, twice. If the run is parked because the payment is in doubt, say that it was made."""
    while not (place.store / "runs.db").exists():
        await asyncio.sleep(0.05)
    async with RunClient.open(store_url(place)) as client:
        while not (waiting := await client.pending()):
            await asyncio.sleep(0.05)
        for _ in range(2):
            try:
                await client.answer(place.run_id, waiting[0].call_id, Approve())
            except HoldfastError:
                break  # the second one may be refused
        while (await client.get(place.run_id)).status is not RunStatus.PARKED:
            await asyncio.sleep(0.05)
        place.ledger.report_unknown()
        await client.unpark(place.run_id, {waiting[0].call_id: "result of pay"})


if __name__ == "__main__":
    main(submit=submit, work=work, approve=approve)
