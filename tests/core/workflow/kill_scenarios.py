"""Workflows that are killed at every point: while they undo, in sagas, branches, races, restarts, with children, and
in the phases of an agent.

`python -m tests.core.workflow.kill_scenarios URL_TEMPLATE FOLDER STRIDE SCENARIO` prints the trials of `kill_trials`.
The ledger has a line for each payment, and one for each undo with the key by which a service ignores a repetition.
"""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.core.workflow import kill_trials
from tests.core.workflow.kill_started_runs import CreatingStore
from tests.core.workflow.kill_trials import POINTS

from holdfast import NOT_EXECUTED, Agent, App, Completed, Phase, Reply, ToolCall, ToolResult, tool
from holdfast.core.agents.agent import AgentSource
from holdfast.core.agents.calls import Reconciliation
from holdfast.core.agents.tool import ToolSchema
from holdfast.core.agents.tool_context import ToolContext
from holdfast.core.run.status import RunStatus
from holdfast.errors import RunCancelled, RunFailed
from holdfast.stores.from_url import store_from_url
from holdfast.workflows import Restart, StepFailed, first, run_agent, saga, sleep, start, wait_for, workflow


async def find_payment(call: ToolContext) -> Completed | Reconciliation:
    name = call.arguments["name"]
    return Completed(f"receipt {name}") if f"pay {name}" in POINTS.read() else NOT_EXECUTED


async def pay_back(call: ToolContext, receipt: str) -> None:
    POINTS.reach()
    POINTS.write(f"undo {receipt.removeprefix('receipt ')} {call.idempotency_key}")
    POINTS.reach()


@tool(reconcile=find_payment, undo=pay_back)
async def pay(name: str) -> str:
    POINTS.reach()
    POINTS.write(f"pay {name}")
    POINTS.reach()
    return f"receipt {name}"


@tool(undo=pay_back)
async def pay_blindly(name: str) -> str:
    """Only a person can say whether it has happened."""
    POINTS.reach()
    POINTS.write(f"pay {name}")
    POINTS.reach()
    return f"receipt {name}"


@workflow
async def undo() -> str:
    await pay("a")
    await asyncio.gather(pay("b"), pay("c"))
    await pay("d")
    raise ValueError("no")


@workflow
async def in_saga() -> list[str]:
    paid = [await pay("a")]
    try:
        async with saga():
            await pay("b")
            async with asyncio.TaskGroup() as group:
                group.create_task(pay("c"))
                group.create_task(pay("d"))
            raise ValueError("no")
    except ValueError as exc:
        paid.append(str(exc))
    paid.append(await pay("e"))
    return paid


@workflow
async def doubt() -> str:
    await pay_blindly.keyed("a")("a")
    await pay_blindly.keyed("b")("b")
    raise ValueError("no")


@workflow
async def cancelled() -> str:
    await pay("a")
    async with saga():
        await pay("b")
        await wait_for("never")
    return ""


async def pay_late(name: str) -> str:
    await sleep(timedelta(hours=1))
    return str(await pay(name))


@workflow
async def race() -> list[str]:
    winner, receipt = await first(fast=pay("fast"), slow=pay_late("slow"), never=wait_for("never"))
    again, _ = await first(slow=pay_late("slower"), pair=pay_pair())
    return [winner, receipt, again, await pay("z")]


async def pay_pair() -> list[str]:
    return list(await asyncio.gather(pay("x"), pay("y")))


@workflow
async def lost_race() -> str:
    """The branch that loses has paid, and the other one has waited for that."""
    paid = asyncio.Event()

    async def lose() -> str:
        await pay("lost")
        paid.set()
        await sleep(timedelta(hours=1))
        return str(await pay("never"))

    async def win() -> str:
        await paid.wait()
        return str(await pay("won"))

    await first(lost=lose(), won=win())
    await pay("after")
    raise ValueError("no")


@workflow
async def lives(number: int) -> str | Restart:
    await pay(f"a{number}")
    await pay(f"b{number}")
    if number < 3:
        return Restart(number + 1)
    raise ValueError("no")


@workflow
async def pay_and_wait(name: str) -> str:
    await pay(name)
    return str(await wait_for("never"))


@workflow
async def pay_and_fail(name: str) -> str:
    await pay(name)
    raise ValueError("no")


@workflow
async def pay_and_return(name: str) -> str:
    return str(await pay(name))


@workflow
async def children() -> list[str]:
    """Its end cancels one child, which pays back; another has failed by itself; the last one is not its child."""
    waiting = await start(pay_and_wait, "waiting")
    own = await start(pay_and_return, "own", detached=True)
    output = [await run_agent(pay_and_return, "run")]
    try:
        await run_agent(pay_and_fail, "failed")
    except StepFailed as exc:
        output.append(exc.message)
    output.append(await (await start(pay_and_return, "started")).result())
    while (await waiting.status()) is not RunStatus.WAITING:
        await sleep(0.02)
    return [*output, waiting.run_id, own.run_id]


async def pay_by_model(messages: Sequence[Any], tools: Sequence[ToolSchema]) -> Reply:
    """Pays what its prompt names, and says what it was told."""
    if not isinstance(messages[-1], ToolResult):
        prompt = messages[-1].text
        POINTS.reach()
        return Reply(
            tool_calls=[ToolCall(id=f"call {name}", name="pay", arguments={"name": name}) for name in prompt.split()]
        )
    POINTS.reach()
    return Reply(text=messages[-1].content)


@workflow
async def book(plan: str) -> dict[str, Any]:
    receipts = await asyncio.gather(pay("c"), pay("d"))
    await sleep(0.01)
    return {"plan": plan, "receipts": receipts}


@workflow
async def close(book: dict[str, Any], fails: bool) -> list[str]:
    closed = await pay("f")
    if fails:
        raise ValueError("no")
    return [book["plan"], *book["receipts"], closed]


phases = Agent(
    name="phases",
    model=pay_by_model,
    tools=[pay],
    phases=[
        Phase(name="plan", prompt="a b"),
        Phase(name="book", agent=book),
        Phase(name="check", prompt="e"),
        Phase(name="close", agent=close),
    ],
)


FLOWS: list[AgentSource] = [
    undo,
    in_saga,
    doubt,
    cancelled,
    race,
    lost_race,
    lives,
    children,
    pay_and_wait,
    pay_and_fail,
    pay_and_return,
    phases,
]


async def run(url: str, report: Path, run_id: str) -> None:
    name, _, variant = sys.argv[4].partition("-")
    known: dict[str, dict[str, Any]] = {"lives": {"number": 1}, "phases": {"fails": variant == "fail"}}
    async with asyncio.timeout(60), App(FLOWS, CreatingStore(store_from_url(url))) as app:
        await app.submit(name, inputs=known.get(name, {}), run_id=run_id)
        end = await finish(app, run_id, cancels=name == "cancelled")
        if name == "children":
            *_, waiting, own = end["output"]
            end["output"] = [*end["output"][:-2], await finish(app, waiting), await finish(app, own)]
        end["unread"] = [each.status.value for each in (await app.list()).runs if each.status.value not in ENDED]
        report.write_text(json.dumps(end))


ENDED = ("done", "failed", "cancelled")


async def finish(app: App, run_id: str, *, cancels: bool = False) -> dict[str, Any]:
    """Wait until the run has ended: cancel one that waits, and say what has happened to calls in doubt."""
    parked = 0
    while (summary := await app.get(run_id)).status.value not in ENDED:
        if summary.status is RunStatus.WAITING and cancels:
            await app.cancel(run_id)
        elif summary.status is RunStatus.PARKED:
            parked += 1
            await resolve(app, run_id, summary.reason)
        await asyncio.sleep(0.02)
    try:
        return {"end": "done", "output": (await app.result(run_id)).output, "parked": parked}
    except RunCancelled:
        return {"end": "cancelled", "parked": parked}
    except RunFailed as exc:
        return {"end": "failed", "error": exc.error, "parked": parked}


async def resolve(app: App, run_id: str, reason: str) -> None:
    """Say what has happened to the call in doubt, as a person does who has looked at the ledger."""
    [(call_id, name)] = re.findall(r"in doubt: call (pay_blindly:(\w):1) of", reason)
    happened = f"pay {name}" in POINTS.read()
    await app.unpark(run_id, {call_id: f"receipt {name}" if happened else NOT_EXECUTED}, by="ann")


if __name__ == "__main__":
    kill_trials.run = run
    kill_trials.main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
