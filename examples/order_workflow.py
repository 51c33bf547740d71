"""An order as a workflow: it is priced, approved by a person within two days, paid, and shipped.

It starts itself as a child process twice: the first process is killed with SIGKILL right after the payment took
effect, the second one finishes the order. A ledger outside the store counts the payments.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from holdfast import NOT_EXECUTED, App, Completed, RunWaiting, Value, tool
from holdfast.core import ToolContext
from holdfast.workflows import ask_person, first, sleep, workflow

LEDGER = Path("payments.txt")


@dataclass
class Order:
    id: str
    items: list[str]


@tool(effect="pure")
async def find_price(item: str) -> int:
    """Ask the catalogue."""
    return {"tea": 4, "pot": 21}[item]


def is_paid(line: str) -> bool:
    return line in LEDGER.read_text().splitlines()


async def find_payment(call: ToolContext) -> Any:
    """Ask the bank, after a crash, whether the payment was made."""
    line = f"{call.arguments['order_id']} {call.arguments['euro']}"
    return Completed(f"receipt {line}") if is_paid(line) else NOT_EXECUTED


@tool(reconcile=find_payment)
def pay(order_id: str, euro: int) -> str:
    """Must not happen twice."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{order_id} {euro}\n")
    if "--die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"receipt {order_id} {euro}"


@tool(effect="idempotent")
async def ship(order_id: str) -> str:
    """The carrier knows the order by its id."""
    return f"{order_id} is on its way"


@workflow
async def fulfil(order: Order) -> str:
    prices = await asyncio.gather(*(find_price(item) for item in order.items))
    winner, answer = await first(
        decided=ask_person(f"Pay {sum(prices)} euro?", options=["yes", "no"]), expired=sleep(timedelta(days=2))
    )
    if winner == "expired" or answer != "yes":
        return f"{order.id} was not ordered"
    receipt = await pay(order.id, sum(prices))
    return f"{receipt}, {await ship(order.id)}"


async def execute() -> None:
    async with App([fulfil], "sqlite:runs.db") as app:
        try:
            result = await app.run(fulfil, inputs={"order": Order("o-7", ["tea", "pot"])}, run_id="o-7")
        except RunWaiting:
            [question] = await app.pending()
            print("asked:", question.reason, flush=True)
            await app.answer("o-7", question.call_id, Value("yes"), by="ann")
            result = await app.result("o-7")
        print(result.output, flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for argument in ("--die", "--finish"):
            child = subprocess.run([sys.executable, Path(__file__).resolve(), argument], cwd=folder, check=False)
            killed = child.returncode == -signal.SIGKILL
            payments = Path(folder, LEDGER).read_text().splitlines()
            print("killed" if killed else "finished", "with payments", payments)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(execute())
    else:
        main()

# Output:
# asked: Pay 25 euro? (yes, no)
# killed with payments ['o-7 25']
# receipt o-7 25, o-7 is on its way
# finished with payments ['o-7 25']
