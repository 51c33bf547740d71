"""Schedules and budgets, as far as a reader may see them."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from holdfast.app import App
from holdfast.batteries.budget import Account, Budget
from holdfast.batteries.schedule import Job, Schedule, ScheduleError
from holdfast.db.tables import TablesError
from holdfast.web.auth import Principal

#: Fires of a job, and accounts, that the page shows.
_FIRES, _MAX_ACCOUNTS = 3, 20


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job and its next fires."""

    job: Job
    fires: Sequence[datetime]
    #: This App has the agent.
    is_known: bool

    @property
    def runs_query(self) -> str:
        """The filter of the runs list that finds the runs of this job."""
        return self.job.run_id(self.job.next_at).rpartition(":")[0]


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of one account: what is spent, and the limit."""

    unit: str
    spent: float
    limit: float

    @property
    def percent(self) -> float:
        """The spent part, at most 100."""
        return 100.0 if self.limit <= 0 else min(100.0, 100 * self.spent / self.limit)

    @property
    def is_reached(self) -> bool:
        return self.spent >= self.limit


class BudgetRow(msgspec.Struct, frozen=True, kw_only=True):
    """One account under one limit."""

    account: Account
    lines: Sequence[BudgetLine]


class Batteries(msgspec.Struct, frozen=True, kw_only=True):
    """What the Fleet page shows of an App's batteries. `None`: the App has no such battery."""

    jobs: Sequence[JobRow] | None
    budgets: Sequence[BudgetRow] | None
    #: Accounts that are not shown.
    more_budgets: int = 0
    #: What could not be read.
    problem: str = ""


async def read_batteries(app: App, schedule: Schedule | None, principal: Principal) -> Batteries:
    """Read the jobs of the schedule and the accounts of the budget."""
    try:
        jobs = None if schedule is None else await _read_jobs(app, schedule, principal)
        accounts = await _read_accounts(app, principal)
    except TablesError as exc:
        return Batteries(jobs=None, budgets=None, problem=f"schedules and budgets cannot be read: {type(exc).__name__}")
    if accounts is None:
        return Batteries(jobs=jobs, budgets=None)
    shown = [_make_budget_row(account) for account in accounts[:_MAX_ACCOUNTS]]
    return Batteries(jobs=jobs, budgets=shown, more_budgets=len(accounts) - len(shown))


def can_see_job(principal: Principal, job: Job) -> bool:
    """Whether the job exists for the principal: it submits runs of the principal's caller id."""
    return principal.run_id is None and (principal.sees_all or job.caller_id == principal.caller_id)


async def _read_jobs(app: App, schedule: Schedule, principal: Principal) -> list[JobRow]:
    rows: list[JobRow] = []
    for job in await schedule.jobs():
        if can_see_job(principal, job):
            fires: Sequence[datetime] = [job.next_at]
            with suppress(ScheduleError):  # cronsim is not installed here, or the job was just removed
                fires = await schedule.upcoming(job.name, _FIRES)
            rows.append(JobRow(job=job, fires=fires, is_known=job.agent in app.agents))
    return rows


async def _read_accounts(app: App, principal: Principal) -> list[Account] | None:
    budget = app.ports.budget
    if not isinstance(budget, Budget) or principal.run_id is not None:
        return None
    accounts = await budget.accounts()
    return [each for each in accounts if principal.sees_all or each.name == f"caller:{principal.caller_id}"]


def _make_budget_row(account: Account) -> BudgetRow:
    lines = [
        BudgetLine(unit=unit, spent=getattr(account.spent, unit), limit=limit)
        for unit, limit in account.limit.limits().items()
    ]
    return BudgetRow(account=account, lines=lines)
