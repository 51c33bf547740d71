"""An order as a workflow: it is priced, approved by a person within two days, paid, and shipped.

It starts itself as child processes in a folder of its own. All but the last are killed with SIGKILL: while the person
is asked, and right after the payment took effect. A ledger outside the store has what really happened.
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

LEDGER = Path("ledger.txt")


def act(line: str) -> None:
    """Let it happen, outside of the store. The argument of the process says where it is killed."""
    kill_at(f"before {line}")
    with LEDGER.open("a") as ledger:
        ledger.write(f"{line}\n")
    kill_at(f"after {line}")


def kill_at(point: str) -> None:
    if sys.argv[1:] == [point]:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Order:
    id: str
    items: list[str]
    #: For how long the person may decide.
    timeout: timedelta = timedelta(days=2)


@tool(effect="pure")
async def find_price(item: str) -> int:
    """Ask the catalogue."""
    return {"tea": 4, "pot": 21}[item]


def has_happened(line: str) -> bool:
    return LEDGER.exists() and line in LEDGER.read_text().splitlines()


async def find_payment(call: ToolContext) -> Any:
    """Ask the bank, after a crash, whether the payment was made."""
    payment = f"{call.arguments['order_id']} {call.arguments['euro']}"
    return Completed(f"receipt {payment}") if has_happened(f"pay {payment}") else NOT_EXECUTED


@tool(reconcile=find_payment)
def pay(order_id: str, euro: int) -> str:
    """Must not happen twice."""
    act(f"pay {order_id} {euro}")
    return f"receipt {order_id} {euro}"


@tool(effect="idempotent")
async def ship(order_id: str) -> str:
    """The carrier knows the order by its id, and sends it once."""
    act(f"ship {order_id}")
    return f"{order_id} is on its way"


@workflow
async def fulfil(order: Order) -> str:
    prices = await asyncio.gather(*(find_price(item) for item in order.items))
    winner, answer = await first(
        decided=ask_person(f"Pay {sum(prices)} euro?", options=["yes", "no"]), expired=sleep(order.timeout)
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
            kill_at("while asked")
            await app.answer("o-7", question.call_id, Value("yes"), by="ann")
            result = await app.result("o-7")
        print(result.output, flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for argument in ("while asked", "after pay o-7 25", "to the end"):
            child = subprocess.run([sys.executable, Path(__file__).resolve(), argument], cwd=folder, check=False)
            ended = "killed" if child.returncode == -signal.SIGKILL else "finished"
            ledger = Path(folder, LEDGER)
            print(f"{ended} {argument}: {ledger.read_text().splitlines() if ledger.exists() else 'nothing'}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(execute())
    else:
        main()

# Output:
# asked: Pay 25 euro? (yes, no)
# killed while asked: nothing
# asked: Pay 25 euro? (yes, no)
# killed after pay o-7 25: ['pay o-7 25']
# receipt o-7 25, o-7 is on its way
# finished to the end: ['pay o-7 25', 'ship o-7']
