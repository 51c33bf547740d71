"""The budget: asks the ledger before a run spends, and tells it after."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec

from holdfast.batteries.budget.amounts import NOTHING, Amounts
from holdfast.batteries.budget.errors import BudgetError, BudgetExhausted, BudgetUnavailable
from holdfast.batteries.budget.ledger import Ledger, MemoryLedger, Reservation
from holdfast.batteries.budget.policies import Limit
from holdfast.batteries.database.errors import TablesError
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.run.info import RunInfo
from holdfast.run.state import RunState

#: Where the budget keeps, among a run's notes, what it has learned of the run.
NOTE = "budget"


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    total: Amounts = NOTHING
    #: The largest step so far: what the next one is expected to cost.
    step: Amounts = NOTHING
    #: When the total was booked, in seconds since the epoch.
    at: float = math.inf


class Budget:
    """Limits what runs may spend. A run that finds nothing left is parked, and goes on when it is unparked."""

    def __init__(self, *limits: Limit, ledger: Ledger | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """Make a budget.

        Args:
            limits: all of them hold.
            ledger: where spending is added up; without one in memory, for this process alone.

        Raises:
            BudgetError: there are no limits.
        """
        if not limits:
            raise BudgetError("a budget without limits: give it at least one Limit")
        self._limits, self._clock = limits, clock
        self._ledger = ledger or MemoryLedger()
        self._open = False

    async def check(self, info: RunInfo, state: RunState) -> None:
        """Set aside what the next step may cost.

        Raises:
            BudgetExhausted: there is no room for it.
            BudgetUnavailable: the ledger does not answer.
        """
        note = _read(state)
        begins = info.parent_run_id is None and not note.total.runs
        estimate = msgspec.structs.replace(note.step, runs=1 if begins else 0)
        wanted = [
            Reservation(account=limit.account(info), window=limit.window, limits=limit.limits(), estimate=estimate)
            for limit in self._limits
        ]
        with _leaving(info):
            await self._ready()
            shortage = await self._ledger.reserve(info.run_id, wanted, self._clock.now())
        if shortage is not None:
            raise BudgetExhausted(shortage.account, shortage.unit, shortage.spent, shortage.limit)

    async def commit(self, info: RunInfo, state: RunState) -> None:
        """Book what the run has spent in all. Children book for themselves.

        Raises:
            BudgetUnavailable: the ledger does not answer.
        """
        top = info.parent_run_id is None
        total = Amounts(
            tokens=state.own_usage.total_tokens,
            cost_usd=state.own_usage.cost_usd,
            runs=1 if top else 0,
            # A child's time is part of its parent's.
            seconds=state.elapsed.total_seconds() if top else 0.0,
        )
        note, now = _read(state), self._clock.now()
        accounts = {limit.account(info) for limit in self._limits}
        # What no limit looks at any more may be forgotten, and the ledger would take it for new.
        forgotten = note.total if note.at < self._horizon(now).timestamp() else NOTHING
        with _leaving(info):
            await self._ready()
            await self._ledger.settle(info.run_id, accounts, total, now, booked=forgotten)
        step = msgspec.structs.replace(total.since(note.total).at_least(note.step), runs=0)
        state.notes[NOTE] = msgspec.to_builtins(_Note(total=total, step=step, at=now.timestamp()))

    async def spent(self, account: str, window: timedelta = timedelta(days=7)) -> Amounts:
        """What an account, such as `caller:alice`, has spent in the last `window`."""
        await self._ready()
        return await self._ledger.spent(account, self._clock.now() - window)

    async def forget(self) -> None:
        """Drop what no limit looks at any more."""
        await self._ready()
        await self._ledger.forget(self._horizon(self._clock.now()))

    async def close(self) -> None:
        """Let go of the ledger."""
        if self._open:
            self._open = False
            await self._ledger.close()

    def _horizon(self, now: datetime) -> datetime:
        """Since when a limit looks at what was spent."""
        return now - max(limit.window for limit in self._limits)

    async def _ready(self) -> None:
        if not self._open:
            await self._ledger.open()
            self._open = True


@contextmanager
def _leaving(info: RunInfo) -> Iterator[None]:
    """Trouble with the tables must never become the run's result."""
    try:
        yield
    except TablesError as exc:
        raise BudgetUnavailable(f"run {info.run_id} waits for recovery, its budget cannot be kept: {exc}") from exc


def _read(state: RunState) -> _Note:
    return msgspec.convert(state.notes.get(NOTE, {}), _Note)
