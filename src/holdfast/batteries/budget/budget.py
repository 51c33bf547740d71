"""What can go wrong with a budget.

Limits: who may spend how much in which time.

The budget: asks the ledger before a run spends, and tells it after.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec

from holdfast.batteries.budget.ledger import NO_SPEND, UNITS, Ledger, MemoryLedger, Reservation, Spend
from holdfast.clock import SYSTEM_CLOCK, Clock
from holdfast.core.errors import RunInterrupted, RunParked
from holdfast.core.info import RunInfo
from holdfast.core.state import RunState
from holdfast.db.errors import TablesError
from holdfast.errors import HoldfastError


class BudgetError(HoldfastError):
    """A budget was put together in a way that cannot work."""


class BudgetExhausted(BudgetError, RunParked):
    """There is nothing left to spend. The run is parked; unpark it when the budget was raised or the window moved."""

    def __init__(self, account: str, unit: str, spent: float, limit: float) -> None:
        RunParked.__init__(
            self, "budget", f"{account} has spent {spent:g} of {limit:g} {unit}: raise it, then unpark the run"
        )
        self.account, self.unit, self.spent, self.limit = account, unit, spent, limit


class BudgetUnavailable(BudgetError, RunInterrupted):
    """The ledger cannot be asked or told. Nothing is wrong with the run: it goes on when the ledger is back."""

    retry_after = timedelta(seconds=5)


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """At most this much in any stretch of time as long as the window. A unit that is `None` is not limited."""

    tokens: int | None = None
    cost_usd: float | None = None
    runs: int | None = None
    #: Of driven time.
    seconds: float | None = None
    window: timedelta = timedelta(days=7)
    #: Whose spending is added up: `caller`, `agent`, `all`, or `label:NAME`.
    per: str = "caller"

    def __post_init__(self) -> None:
        if self.per not in ("caller", "agent", "all") and not self.per.removeprefix("label:") != self.per:
            raise BudgetError(f"per is {self.per!r}: use caller, agent, all, or label:NAME")
        if all(getattr(self, unit) is None for unit in UNITS):
            raise BudgetError(f"a limit that limits nothing: give one of {', '.join(UNITS)}")
        if self.window <= timedelta(0):
            raise BudgetError(f"window is {self.window}: give a positive duration")

    def account(self, info: RunInfo) -> str:
        """Under which name the spending of this run is added up."""
        if self.per == "caller":
            return f"caller:{info.caller_id}"
        if self.per == "agent":
            return f"agent:{info.agent_name}"
        if self.per == "all":
            return "all"
        name = self.per.removeprefix("label:")
        return f"label:{name}={info.labels.get(name, '')}"

    def limits(self) -> dict[str, float]:
        """The limited units."""
        return {unit: getattr(self, unit) for unit in UNITS if getattr(self, unit) is not None}


#: Where the budget keeps, among a run's notes, what it has learned of the run.
ANNOTATION_KEY = "budget"


class _BudgetAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    total: Spend = NO_SPEND
    #: The largest step so far: what the next one is expected to cost.
    step: Spend = NO_SPEND
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
        note = _load_annotation(state)
        begins = info.parent_run_id is None and not note.total.runs
        estimate = msgspec.structs.replace(note.step, runs=1 if begins else 0)
        wanted = [
            Reservation(account=limit.account(info), window=limit.window, limits=limit.limits(), estimate=estimate)
            for limit in self._limits
        ]
        with _interrupt_on_error(info):
            await self._ensure_open()
            shortage = await self._ledger.reserve(info.run_id, wanted, self._clock.now())
        if shortage is not None:
            raise BudgetExhausted(shortage.account, shortage.unit, shortage.spent, shortage.limit)

    async def commit(self, info: RunInfo, state: RunState) -> None:
        """Book what the run has spent in all. Children book for themselves.

        Raises:
            BudgetUnavailable: the ledger does not answer.
        """
        top = info.parent_run_id is None
        total = Spend(
            tokens=state.own_usage.total_tokens,
            cost_usd=state.own_usage.cost_usd,
            runs=1 if top else 0,
            # A child's time is part of its parent's.
            seconds=state.elapsed.total_seconds() if top else 0.0,
        )
        note, now = _load_annotation(state), self._clock.now()
        accounts = {limit.account(info) for limit in self._limits}
        # What no limit looks at any more may be forgotten, and the ledger would take it for new.
        forgotten = note.total if note.at < self._window_start(now).timestamp() else NO_SPEND
        with _interrupt_on_error(info):
            await self._ensure_open()
            await self._ledger.commit(info.run_id, accounts, total, now, already_booked=forgotten)
        step = msgspec.structs.replace(total.since(note.total).elementwise_max(note.step), runs=0)
        state.annotations[ANNOTATION_KEY] = msgspec.to_builtins(
            _BudgetAnnotation(total=total, step=step, at=now.timestamp())
        )

    async def spent(self, account: str, window: timedelta = timedelta(days=7)) -> Spend:
        """What an account, such as `caller:alice`, has spent in the last `window`."""
        await self._ensure_open()
        return await self._ledger.spent(account, self._clock.now() - window)

    async def purge(self) -> None:
        """Drop what no limit looks at any more."""
        await self._ensure_open()
        await self._ledger.purge(self._window_start(self._clock.now()))

    async def close(self) -> None:
        """Let go of the ledger."""
        if self._open:
            self._open = False
            await self._ledger.close()

    def _window_start(self, now: datetime) -> datetime:
        """Since when a limit looks at what was spent."""
        return now - max(limit.window for limit in self._limits)

    async def _ensure_open(self) -> None:
        if not self._open:
            await self._ledger.open()
            self._open = True


@contextmanager
def _interrupt_on_error(info: RunInfo) -> Iterator[None]:
    """Trouble with the tables must never become the run's result."""
    try:
        yield
    except TablesError as exc:
        raise BudgetUnavailable(f"run {info.run_id} waits for recovery, its budget cannot be kept: {exc}") from exc


def _load_annotation(state: RunState) -> _BudgetAnnotation:
    return msgspec.convert(state.annotations.get(ANNOTATION_KEY, {}), _BudgetAnnotation)
