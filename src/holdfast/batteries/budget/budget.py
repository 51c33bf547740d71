"""The budget: reserves in the ledger before a step, commits to it after."""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

import msgspec

from holdfast.batteries.budget.ledger import NO_SPEND, UNITS, Ledger, Reservation, Shortage, Spend
from holdfast.clock import CLOCK, Clock
from holdfast.core.errors import RunInterrupted, RunParked
from holdfast.core.run.info import RunInfo
from holdfast.core.run.state import RunState
from holdfast.core.run.waiting import BudgetExhausted
from holdfast.db.tables import Tables, TablesError
from holdfast.root_error import HoldfastError


class BudgetError(HoldfastError):
    """The budget's settings are invalid.

    What to do: Correct the setting that the message names.
    """


class BudgetUnavailable(BudgetError, RunInterrupted):
    """The ledger cannot be read or written. The run is interrupted.

    What to do: Make the database of the ledger reachable: a worker resumes the run.
    """

    retry_after: timedelta = timedelta(seconds=5)


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Maximum spending in any period as long as `window`. A unit that is `None` is not limited."""

    tokens: int | None = None
    cost_usd: float | None = None
    runs: int | None = None
    #: Execution time of runs.
    seconds: float | None = None
    window: timedelta = timedelta(days=7)
    #: What each total is kept for: `caller`, `agent`, `all`, or `label:NAME`.
    per: str = "caller"

    def __post_init__(self) -> None:
        if self.per not in ("caller", "agent", "all") and not self.per.startswith("label:"):
            raise BudgetError(f"per is {self.per!r}: use caller, agent, all, or label:NAME")
        if not self.limits():
            raise BudgetError(f"a limit needs at least one of {', '.join(UNITS)}")
        if not isinstance(self.window, timedelta) or self.window <= timedelta(0):
            raise BudgetError(f"window is {self.window!r:.80}: give a positive timedelta")

    def account(self, info: RunInfo) -> str:
        """Return the account that this run spends from."""
        if self.per == "caller":
            return f"caller:{info.caller_id}"
        if self.per == "agent":
            return f"agent:{info.agent_name}"
        if self.per == "all":
            return "all"
        name = self.per.removeprefix("label:")
        return f"label:{name}={info.labels.get(name, '')}"

    def covers(self, account: str) -> bool:
        """Whether this limit keeps a total for the account."""
        if self.per == "all":
            return account == "all"
        return account.startswith(f"{self.per}=" if self.per.startswith("label:") else f"{self.per}:")

    def limits(self) -> dict[str, float]:
        """Return the limited units and their maximum."""
        values = {"tokens": self.tokens, "cost_usd": self.cost_usd, "runs": self.runs, "seconds": self.seconds}
        return {unit: value for unit, value in values.items() if value is not None}


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What one account has spent of one limit, at one moment."""

    name: str
    #: As it counts: a person may have changed it for this account.
    limit: Limit
    #: In the last `limit.window`.
    spent: Spend
    #: The units that a person has changed.
    changed: frozenset[str] = frozenset()

    @property
    def share(self) -> float:
        """The spent part of the limit, of the unit of which most is spent. One and more: the limit is reached."""
        return max(
            getattr(self.spent, unit) / maximum if maximum > 0 else math.inf
            for unit, maximum in self.limit.limits().items()
        )


#: Name of the budget's data in the run's port data.
PORT_NAME = "budget"


class _BudgetData(msgspec.Struct, frozen=True, kw_only=True):
    #: It was permitted to begin. A run that was refused does not count.
    admitted: bool = False
    total: Spend = NO_SPEND
    #: The most expensive step of the phase so far: the estimate for the next one.
    step: Spend = NO_SPEND
    #: How many phases had ended before that step.
    phases: int = 0
    #: When the total was committed, in seconds since the epoch.
    at: float | None = None


#: How often spending that no longer counts is deleted.
_PURGE_INTERVAL = timedelta(hours=1)


class Budget:
    """Limits the spending of runs. A run that reaches a limit waits, without a process, and resumes by itself.

    It does so when the window has moved, or when a limit was raised: by `set_limit`, or in the code of an App that
    opens. A limit that no window can help, such as zero, parks the run.

    The cost of a step is known when it has ended. A step begins if the account has room left beside the reservations of
    other runs, and each run reserves the cost of the most expensive step of its phase so far. So a limit on tokens,
    cost or seconds may be exceeded by the part of the steps in progress that was not reserved: at most one step of each
    run. A limit on runs is never exceeded.
    """

    def __init__(self, *limits: Limit, tables: Tables | None = None, clock: Clock | None = None) -> None:
        """Create a budget.

        Args:
            limits: all of them apply.
            tables: keep the spending. Default: in the store of the App, shared by all its processes.

        Raises:
            BudgetError: there are no limits.
        """
        if not limits:
            raise BudgetError("a budget needs at least one Limit")
        for limit in limits:
            if not isinstance(limit, Limit):
                raise BudgetError(f"a limit is {limit!r:.80}: give a Limit, such as Limit(tokens=1_000_000)")
        self.tables = tables
        self._limits, self._clock = limits, clock or CLOCK.get()
        self._ledger = Ledger(tables)
        #: When it next deletes spending that no longer counts.
        self._purge_at: datetime | None = None
        self._wake: Callable[[], Awaitable[None]] | None = None
        #: Whether its limits were compared with those of earlier processes.
        self._is_compared = False

    async def open(self, tables: Tables) -> None:
        """Open the ledger: in `tables`, unless the budget was given others."""
        await self._ledger.open(tables)

    async def check(self, info: RunInfo, state: RunState) -> None:
        """Reserve the estimated cost of the next step.

        Raises:
            BudgetExhausted: a limit is reached. RunParked: a limit has no room for any run.
            BudgetUnavailable: the ledger cannot be reached.
        """
        data = _load_data(state)
        is_new_run = info.parent_run_id is None and not data.total.runs
        estimate = msgspec.structs.replace(data.step, runs=1 if is_new_run else 0)
        reservations = [
            Reservation(account=limit.account(info), window=limit.window, limits=limit.limits(), estimate=estimate)
            for limit in self._limits
        ]
        with _interrupt_on_error(info):
            shortage = await self._ledger.reserve(info.run_id, reservations, self._clock.now())
        if shortage is not None and shortage.until is None:
            raise RunParked("budget", f"{_describe_account(shortage)}: raise the limit, then unpark the run")
        if shortage is not None:
            raise BudgetExhausted(info.run_id, _describe_shortage(shortage), shortage.until)
        if not data.admitted:
            _save_data(state, msgspec.structs.replace(data, admitted=True))

    async def commit(self, info: RunInfo, state: RunState) -> None:
        """Book the run's total spending. Child runs book their own.

        Raises:
            BudgetUnavailable: the ledger cannot be reached.
        """
        data, now = _load_data(state), self._clock.now()
        is_root = info.parent_run_id is None
        total = Spend(
            tokens=state.own_usage.total_tokens,
            cost_usd=state.own_usage.cost_usd,
            runs=1 if is_root and data.admitted else 0,
            # The elapsed time of a parent includes its children's.
            seconds=state.elapsed.total_seconds() if is_root else 0.0,
        )
        accounts = {limit.account(info) for limit in self._limits}
        # The ledger may have purged a total older than every window. It must not book that total again.
        was_purged = data.at is not None and data.at < self._window_start(now).timestamp()
        with _interrupt_on_error(info):
            await self._ledger.commit(
                info.run_id, accounts, total, now, already_booked=data.total if was_purged else NO_SPEND
            )
            await self._purge_hourly(now)
        step = total.since(data.total).elementwise_max(data.step)
        _save_data(state, msgspec.structs.replace(data, total=total, step=step, at=now.timestamp()))

    def bind(self, wake: Callable[[], Awaitable[None]]) -> None:
        """Set what resumes the runs that wait for their budget. An App does so when it opens."""
        self._wake, self._is_compared = wake, False

    async def wake_if_raised(self) -> None:
        """Resume the runs that wait, if a limit was raised since the last call, by any process that shares the ledger.

        Raises:
            TablesError: the ledger cannot be reached.
        """
        if self._wake is None:
            return
        if not self._is_compared:
            defaults = {
                f"{limit.per} {limit.window.total_seconds():g} {unit}": float(maximum)
                for limit in self._limits
                for unit, maximum in limit.limits().items()
            }
            await self._ledger.compare_defaults(defaults)
            self._is_compared = True
        if marks := await self._ledger.list_raises():
            await self._wake()
            await self._ledger.forget_raises(marks)

    async def spent(self, account: str, window: timedelta = timedelta(days=7)) -> Spend:
        """Return the spending of an account, such as `caller:alice`, in the last `window`."""
        return await self._ledger.spent(account, self._clock.now() - window)

    async def accounts(self) -> Sequence[Account]:
        """Return every account that has spent something within the window of a limit, the nearest to its limit first.

        Raises:
            TablesError: the ledger cannot be read.
        """
        now, found = self._clock.now(), list[Account]()
        for limit in self._limits:
            spending = await self._ledger.accounts(now - limit.window)
            changed = await self._ledger.limits(limit.window)
            found += [
                _make_account(name, limit, spent, changed.get(name, {}))
                for name, spent in spending.items()
                if limit.covers(name)
            ]
        return sorted(found, key=lambda account: (-account.share, account.name))

    async def set_limit(
        self, account: str, unit: str, maximum: float | None, *, window: timedelta | None = None
    ) -> None:
        """Change the limit of one account, such as `caller:alice`, for all processes that share the ledger.

        Runs that wait for the account resume. A parked run stays parked: unpark it.

        Args:
            maximum: `None`: the limit of the code counts again.
            window: of the limit, if several limit this unit.

        Raises:
            BudgetError: no limit, or more than one, covers the account and the unit, or the maximum is not valid.
            TablesError: the ledger cannot be written.
        """
        found = [
            each
            for each in self._limits
            if each.covers(account) and unit in each.limits() and window in (None, each.window)
        ]
        if len({each.window for each in found}) != 1:
            raise BudgetError(f"{len(found)} limits of {unit:.40} cover {account:.80}: name one that the App has")
        if maximum is not None and not (math.isfinite(maximum) and maximum >= 0):
            raise BudgetError(f"the maximum is {maximum}: give a number, zero or more")
        await self._ledger.set_limit(account, unit, found[0].window, maximum)
        await self.wake_if_raised()

    async def purge(self) -> None:
        """Delete spending that is older than every window."""
        now = self._clock.now()
        self._purge_at = now + _PURGE_INTERVAL
        await self._ledger.purge(self._window_start(now))

    async def _purge_hourly(self, now: datetime) -> None:
        if self._purge_at is None:
            self._purge_at = now + _PURGE_INTERVAL
        elif now >= self._purge_at:
            await self.purge()

    async def close(self) -> None:
        """Close the ledger. May be called again."""
        await self._ledger.close()

    def _window_start(self, now: datetime) -> datetime:
        """Return the start of the longest window."""
        return now - max(limit.window for limit in self._limits)


def _make_account(name: str, limit: Limit, spent: Spend, changed: Mapping[str, float]) -> Account:
    """Make the account with the limits that a person has set. Tokens and runs are whole numbers."""
    set_by_hand = {
        unit: value if unit in ("cost_usd", "seconds") else int(value)
        for unit, value in changed.items()
        if unit in limit.limits()
    }
    limit = msgspec.structs.replace(limit, **set_by_hand)
    return Account(name=name, limit=limit, spent=spent, changed=frozenset(set_by_hand))


@contextmanager
def _interrupt_on_error(info: RunInfo) -> Iterator[None]:
    """Turn a database error into an interruption: it must not fail the run."""
    try:
        yield
    except TablesError as exc:
        raise BudgetUnavailable(
            f"run {info.run_id} is interrupted, its budget cannot be read or written: {exc}"
        ) from exc


def _describe_shortage(shortage: Shortage) -> str:
    """Return what a run waits for."""
    return f"its budget until {shortage.until:%Y-%m-%d %H:%M:%S} UTC or a raised limit ({_describe_account(shortage)})"


def _describe_account(shortage: Shortage) -> str:
    kind, _, name = shortage.account.partition(":")
    account = shortage.account if name or kind == "all" else f"runs without a {kind}"
    return f"{account}: {shortage.spent:g} of {shortage.limit:g} {shortage.unit}"


def _load_data(state: RunState) -> _BudgetData:
    """Return the data. A phase has an estimate of its own: a workflow costs nothing, and its children need the room."""
    data, phases = msgspec.convert(state.port_data.get(PORT_NAME, {}), _BudgetData), len(state.phases)
    return data if data.phases == phases else msgspec.structs.replace(data, step=NO_SPEND, phases=phases)


def _save_data(state: RunState, data: _BudgetData) -> None:
    state.set_port_data(PORT_NAME, msgspec.to_builtins(data))
