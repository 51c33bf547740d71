"""The agent of the demo, which books invoices, and the worker process that is killed.

The ledger records every action of the agent in a file outside the store.
"""

import asyncio
import os
import sys
import zlib
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.app import App
from holdfast.checkpoint.store import RunStore, get_record
from holdfast.core.agents.agent import Agent
from holdfast.core.agents.calls import NOT_EXECUTED, Completed, Effect, Reconciliation
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import ToolContext, current_call
from holdfast.core.run.info import RunInfo
from holdfast.core.run.messages import Reply, ToolCall, ToolResult, Usage
from holdfast.core.run.run_events import Event
from holdfast.stores.from_url import store_from_url

#: `ask`: a model request. `start`, `end`: the body of a tool. `found`: a call in doubt was reconciled as paid.
Action = Literal["ask", "start", "end", "found"]


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action of the agent."""

    #: The number of the process, from 1.
    attempt: int
    action: Action
    #: The tool call's id, or the number of the model request.
    what: str


class InvoiceLedger:
    """An append-only file. An action is in it before it counts as done."""

    def __init__(self, path: Path, attempt: int = 0) -> None:
        self._path, self._attempt = path, attempt

    def write(self, action: Action, what: str) -> None:
        line = msgspec.json.encode(LedgerEntry(attempt=self._attempt, action=action, what=what)) + b"\n"
        # One write for the line, so that a kill cannot cut it.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def read(self) -> list[LedgerEntry]:
        if not self._path.exists():
            return []
        return [msgspec.json.decode(line, type=LedgerEntry) for line in self._path.read_bytes().splitlines()]

    def has(self, action: Action, what: str) -> bool:
        return any(line.action == action and line.what == what for line in self.read())


AGENT_NAME = "clerk"
RUN_ID = "demo"
PROMPT = "Pay the open invoices."

ROUNDS, BATCH_SIZE = 6, 3
#: A round is two steps, reading and paying; the answer is one more.
STEPS = 2 * ROUNDS + 1


def get_invoice_amount(number: int) -> int:
    """Return the amount of an invoice."""
    return 100 + zlib.crc32(b"invoice %d" % number) % 900


def expected_answer() -> str:
    """Return the correct answer of the run."""
    count = ROUNDS * BATCH_SIZE
    return f"{count} invoices are paid, {sum(map(get_invoice_amount, range(1, count + 1)))} in all."


def build_agent(ledger: InvoiceLedger, pace: float) -> Agent:
    """Build the agent. With a `pace` of 1 its tools take some tenths of a second."""

    async def work(name: str) -> None:
        await asyncio.sleep(pace * (0.08 + zlib.crc32(name.encode()) % 160 / 1000))

    async def read_invoice(number: int) -> int:
        """Return the amount of an invoice. Pure, so it may be repeated."""
        call_id = current_call().call_id
        ledger.write("start", call_id)
        await work(call_id)
        ledger.write("end", call_id)
        return get_invoice_amount(number)

    async def pay(number: int, amount: int) -> int:
        """Pay an invoice. The `start` line in the ledger is the payment."""
        call_id = current_call().call_id
        ledger.write("start", call_id)
        await work(call_id)
        ledger.write("end", call_id)
        return amount

    async def was_paid(call: ToolContext) -> Completed | Reconciliation:
        """Reconcile a payment that was started and has no recorded result."""
        paid = ledger.has("start", call.call_id)
        if paid:
            ledger.write("found", call.call_id)
        return Completed(call.arguments["amount"]) if paid else NOT_EXECUTED

    async def model(messages: Sequence[Any], tools: Sequence[Any]) -> Reply:
        asked = sum(isinstance(message, Reply) for message in messages)
        ledger.write("ask", str(asked))
        await work(f"request {asked}")
        return _make_reply(asked, [message for message in messages if isinstance(message, ToolResult)])

    tools: list[Tool] = [Tool(read_invoice, effect=Effect.PURE), Tool(pay, effect=Effect.ONCE, reconcile=was_paid)]
    return Agent(name=AGENT_NAME, model=model, tools=tools)


def _make_reply(asked: int, results: Sequence[ToolResult]) -> Reply:
    usage = Usage(input_tokens=100 + 60 * asked, output_tokens=40)
    if asked == STEPS - 1:
        paid = [result.content for result in results if result.tool == "pay"]
        return Reply(text=f"{len(paid)} invoices are paid, {sum(paid)} in all.", usage=usage)
    numbers = [asked // 2 * BATCH_SIZE + place for place in range(1, BATCH_SIZE + 1)]
    if asked % 2 == 0:
        calls = [ToolCall(id=f"read-{number}", name="read_invoice", arguments={"number": number}) for number in numbers]
        return Reply(text="Let me look at the next invoices.", tool_calls=calls, usage=usage)
    amounts = {result.call_id: result.content for result in results}
    calls = [
        ToolCall(id=f"pay-{number}", name="pay", arguments={"number": number, "amount": amounts[f"read-{number}"]})
        for number in numbers
    ]
    return Reply(text="They are fine, I pay them.", tool_calls=calls, usage=usage)


class EventForwarder:
    """A listener that writes each event to stdout as a line of JSON, for the parent process."""

    async def on_event(self, info: RunInfo, event: Event) -> None:
        # Unbuffered: an event from before the kill has to arrive.
        os.write(1, msgspec.json.encode(event) + b"\n")

    async def on_output(self, info: RunInfo, output: Any) -> None: ...

    async def on_error(self, info: RunInfo, error: BaseException) -> None: ...


async def run_worker(store: RunStore, ledger: InvoiceLedger, pace: float) -> None:
    """Recover until the run is terminal."""
    async with App([build_agent(ledger, pace)], store, worker=False, listener=EventForwarder()) as app:
        with app.changes.listen() as changed:
            while not (await get_record(store, RUN_ID)).is_terminal:
                await app.recover()
                await changed.wait(timedelta(milliseconds=50))


if __name__ == "__main__":
    _, url, ledger, attempt, pace = sys.argv
    asyncio.run(run_worker(store_from_url(url), InvoiceLedger(Path(ledger), int(attempt)), float(pace)))
