"""The tools of scripted agents and workflows. They are made once; a context variable knows the process that calls."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from holdfast.core.agents.calls import NOT_EXECUTED, Completed, Reconciliation
from holdfast.core.agents.tool import Tool
from holdfast.core.agents.tool_context import ToolContext, current_call
from holdfast.core.agents.waiting_tools import ask_person, sleep, wait_for
from holdfast.core.run.waiting import ApprovalRequest, Deferred
from holdfast.testing.simulation.machine.process import SimulatedProcess
from holdfast.testing.simulation.plan import Plan
from holdfast.testing.simulation.world_ledger import ToolEffect, WorldLedger


class ScriptedProcess:
    """What tools, models and workflows of one simulated process do to the ledger."""

    def __init__(self, process: SimulatedProcess, ledger: WorldLedger, tokens: dict[str, str], plan: Plan) -> None:
        self.process, self.ledger, self.tokens, self.slowness = process, ledger, tokens, plan.slowness
        self.has_transactions = plan.store == "sqlite"
        self._once = RECONCILED if plan.reconciles else ONCE
        self.random = process.make_random()

    def choose(self, tool: Tool) -> Tool:
        """Return the tool, or the one that takes its place in this world."""
        return self._once if tool is ONCE else tool

    async def wait(self) -> None:
        if self.random.random() < 0.6:
            await asyncio.sleep(self.random.random() ** 4 * self.slowness)

    @contextmanager
    def executing(self, run_id: str) -> Iterator[None]:
        """Count the run among those that this process executes."""
        self.process.check_alive()
        active = self.ledger.enter(self.process.number, run_id)
        try:
            yield
        finally:
            active.leave()

    def begin(self, kind: str, place: str) -> ToolEffect:
        """Record that the current call begins. A step of a workflow is known by its place in the script."""
        self.process.check_alive()
        call = current_call()
        effect = ToolEffect(call.run_id, 0 if place else call.step, place or call.call_id, call.tool, kind)
        self.ledger.begin(effect)
        return effect

    def finish(self, effect: ToolEffect) -> str:
        """Record that the call has ended, and return its result."""
        self.process.check_alive()
        return self.ledger.finish(effect)

    async def act(self, kind: str, place: str) -> str:
        effect = self.begin(kind, place)
        with self.executing(effect.run_id):
            await self.wait()
        return self.finish(effect)


#: The table of the user in the database of the store: the run, the call, and how often that had begun.
CREATE_BOOKINGS = "CREATE TABLE IF NOT EXISTS bookings (run_id TEXT, place TEXT, number INTEGER)"

#: The process that calls a tool.
SCRIPTED: ContextVar[ScriptedProcess] = ContextVar("simulated_script")


async def pure(place: str = "") -> str:
    """Do something that may be repeated."""
    return await SCRIPTED.get().act("pure", place)


async def idempotent(place: str = "") -> str:
    """Do something that may be repeated."""
    return await SCRIPTED.get().act("idempotent", place)


async def once(place: str = "") -> str:
    """Do something that must not be repeated."""
    return await SCRIPTED.get().act("once", place)


async def look_up(call: ToolContext) -> Completed | Reconciliation:
    """Find out whether a call of `once` was made."""
    scripted = SCRIPTED.get()
    scripted.process.check_alive()
    place = call.arguments.get("place") or call.call_id
    count = scripted.ledger.look_up(call.run_id, place)
    await scripted.wait()
    return Completed(f"{place} done, call {count}") if count else NOT_EXECUTED


def blocking(place: str = "") -> str:
    """Do something in a thread that must not be repeated."""
    scripted = SCRIPTED.get()
    effect = scripted.begin("once", place)
    if scripted.random.random() < 0.5:
        scripted.process.threads.sleep(scripted.random.random() * scripted.slowness)
    return scripted.finish(effect)


async def approved(place: str = "") -> str:
    """Do something that a person has to approve."""
    return await SCRIPTED.get().act("once", place)


async def deferred(place: str = "") -> Deferred:
    """Start something whose result comes later."""
    scripted, call = SCRIPTED.get(), current_call()
    scripted.tokens[f"{call.run_id}/{place or call.call_id}"] = call.completion_token
    await scripted.act("once", place)
    return Deferred(expires_in=timedelta(seconds=4))


async def broken(place: str = "") -> str:
    """Fail."""
    await SCRIPTED.get().act("pure", place)
    raise ValueError("it is broken")


async def reserve(place: str = "") -> str:
    """Do something that can be undone."""
    return await SCRIPTED.get().act("once", place)


def book(connection: Any, place: str = "") -> str:
    """Write a row to the database of the store. A call in ten fails after that."""
    scripted = SCRIPTED.get()
    effect = scripted.begin("transaction", place)
    draw = scripted.random.random
    connection.execute(CREATE_BOOKINGS)
    row = (effect.run_id, effect.call_id, scripted.ledger.begun[effect])
    connection.execute("INSERT INTO bookings VALUES (?, ?, ?)", row)
    if draw() < 0.4:
        scripted.process.threads.sleep(draw() ** 4 * min(scripted.slowness, 2.0))
    if draw() < 0.1:
        raise ValueError("the booking is refused")
    return scripted.finish(effect)


async def release(call: ToolContext, value: Any) -> None:
    """Undo a call of `reserve`."""
    scripted = SCRIPTED.get()
    scripted.process.check_alive()
    scripted.ledger.undo(call.run_id, call.arguments["place"])
    await scripted.wait()


PURE = Tool(pure, effect="pure")
IDEMPOTENT = Tool(idempotent, effect="idempotent")
ONCE = Tool(once)
RECONCILED = Tool(once, reconcile=look_up)
BLOCKING = Tool(blocking)
APPROVED = Tool(approved, approval=ApprovalRequest(expires_in=timedelta(seconds=4)))
DEFERRED = Tool(deferred)
BROKEN = Tool(broken, effect="pure")
RESERVE = Tool(reserve, undo=release)
#: Stores in memory refuse an agent that has it.
BOOK = Tool(book, effect="transaction", timeout=timedelta(seconds=1))

#: The tools of an agent, without the one that runs a child.
AGENT_TOOLS = (PURE, IDEMPOTENT, ONCE, BLOCKING, APPROVED, DEFERRED, BROKEN, sleep, wait_for, ask_person)
_CALLED = (PURE, IDEMPOTENT, ONCE, BLOCKING, APPROVED, DEFERRED, BROKEN, RESERVE, BOOK)
#: The tools of a workflow, by name.
WORKFLOW_TOOLS = {tool.name: tool for tool in _CALLED}
