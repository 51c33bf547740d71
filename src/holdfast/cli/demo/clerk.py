"""The demo's agent: reads invoices, three at a time, and pays them. Its model follows a script, so no key is needed."""

import asyncio
import zlib
from collections.abc import Sequence
from typing import Any

from holdfast.cli.demo.ledger import Ledger
from holdfast.run.agent import Agent
from holdfast.run.call import CallContext, current_call
from holdfast.run.effects import DID_NOT_HAPPEN, Effect, Happened, Verdict
from holdfast.run.message import Reply, ToolCall, ToolResult
from holdfast.run.tool import Tool
from holdfast.run.usage import Usage

NAME = "clerk"
RUN_ID = "demo"
PROMPT = "Pay the open invoices."

ROUNDS, AT_ONCE = 6, 3
#: A round is two steps, reading and paying; the answer is one more.
STEPS = 2 * ROUNDS + 1


def amount_of(number: int) -> int:
    """What invoice `number` asks for."""
    return 100 + zlib.crc32(b"invoice %d" % number) % 900


def answer() -> str:
    """What the run has to say in the end, however often it was killed."""
    count = ROUNDS * AT_ONCE
    return f"{count} invoices are paid, {sum(map(amount_of, range(1, count + 1)))} in all."


def clerk(ledger: Ledger, pace: float) -> Agent:
    """The agent. With a `pace` of 1 its tools take some tenths of a second, so that one can watch."""

    async def work(name: str) -> None:
        await asyncio.sleep(pace * (0.08 + zlib.crc32(name.encode()) % 160 / 1000))

    async def read_invoice(number: int) -> int:
        """What an invoice asks for. Changes nothing, so it may be done again."""
        call_id = current_call().call_id
        ledger.write("start", call_id)
        await work(call_id)
        ledger.write("end", call_id)
        return amount_of(number)

    async def pay(number: int, amount: int) -> int:
        """Pay an invoice. The line in the ledger is the payment: it must not be there twice."""
        call_id = current_call().call_id
        ledger.write("start", call_id)
        await work(call_id)
        ledger.write("end", call_id)
        return amount

    async def was_paid(call: CallContext) -> Happened | Verdict:
        """Asked about a payment that was begun and whose result was never recorded."""
        paid = ledger.has("start", call.call_id)
        if paid:
            ledger.write("found", call.call_id)
        return Happened(call.arguments["amount"]) if paid else DID_NOT_HAPPEN

    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        asked = sum(isinstance(message, Reply) for message in messages)
        ledger.write("ask", str(asked))
        await work(f"question {asked}")
        return _reply(asked, [message for message in messages if isinstance(message, ToolResult)])

    tools = [Tool(read_invoice, effect=Effect.PURE), Tool(pay, effect=Effect.ONCE, reconcile=was_paid)]
    return Agent(name=NAME, model=model, tools=tools)


def _reply(asked: int, results: Sequence[ToolResult]) -> Reply:
    usage = Usage(input_tokens=100 + 60 * asked, output_tokens=40)
    if asked == STEPS - 1:
        paid = [result.content for result in results if result.tool == "pay"]
        return Reply(text=f"{len(paid)} invoices are paid, {sum(paid)} in all.", usage=usage)
    numbers = [asked // 2 * AT_ONCE + place for place in range(1, AT_ONCE + 1)]
    if asked % 2 == 0:
        calls = [ToolCall(id=f"read-{number}", name="read_invoice", arguments={"number": number}) for number in numbers]
        return Reply(text="Let me look at the next invoices.", tool_calls=calls, usage=usage)
    amounts = {result.call_id: result.content for result in results}
    calls = [
        ToolCall(id=f"pay-{number}", name="pay", arguments={"number": number, "amount": amounts[f"read-{number}"]})
        for number in numbers
    ]
    return Reply(text="They are fine, I pay them.", tool_calls=calls, usage=usage)
