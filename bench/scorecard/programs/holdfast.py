"""holdfast: an agent, on SQLite with its defaults."""

import asyncio
from collections.abc import Sequence

from bench.scorecard.ledger import Ledger
from bench.scorecard.programs.agent_script import ask_model
from bench.scorecard.programs.command import Place, main, sleep_for_turn, wait_for_end

from holdfast import Agent, App, Approve, Reply, ToolCall, ToolResult, tool
from holdfast.core import Message, ToolSchema
from holdfast.root_error import HoldfastError
from holdfast.runtime.operations.run_client import RunClient


def make_agent(ledger: Ledger) -> Agent:
    @tool(effect="pure")
    async def look(effect: str) -> str:
        return ledger.perform(effect)

    @tool(effect="idempotent")
    async def fetch(effect: str) -> str:
        await sleep_for_turn(effect)
        return ledger.perform(effect)

    @tool(approval=True)
    async def pay(effect: str) -> str:
        return ledger.perform(effect)

    async def model(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        results = [message for message in messages if isinstance(message, ToolResult)]
        if any("Unknown outcome" in result.content for result in results):
            ledger.report_unknown()
        text, wanted = await ask_model(ledger, [result.call_id for result in results])
        names = {effect: effect.partition("-")[0] for effect in wanted}
        return Reply(text=text, tool_calls=[ToolCall(id=e, name=names[e], arguments={"effect": e}) for e in wanted])

    return Agent(name="clerk", model=model, tools=[look, fetch, pay])


def store_url(place: Place) -> str:
    return f"sqlite:{place.store / 'runs.db'}"


async def submit(place: Place) -> str:
    async with App([make_agent(place.ledger)], store_url(place)) as app:
        return str((await app.run("clerk", "Pay order 1.", run_id=place.run_id, through_waits=True)).output)


async def work(place: Place) -> None:
    async with App([make_agent(place.ledger)], store_url(place)):
        await wait_for_end(place.ledger)


async def approve(place: Place) -> None:
    while not (place.store / "runs.db").exists():
        await asyncio.sleep(0.05)
    async with RunClient.open(store_url(place)) as client:
        while not (waiting := await client.pending()):
            await asyncio.sleep(0.05)
        for _ in range(2):
            try:
                await client.answer(place.run_id, waiting[0].call_id, Approve())
            except HoldfastError:
                return  # the second one may be refused


if __name__ == "__main__":
    main(submit=submit, work=work, approve=approve)
