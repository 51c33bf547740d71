"""Limits on the Fleet page: concurrency limits of the store, accounts of the budget, and the forms that change them."""

import logging
from collections.abc import Sequence
from datetime import timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.app import App
from holdfast.batteries.budget import Account, Budget, BudgetError
from holdfast.checkpoint.workers import LimitUsage, make_limit
from holdfast.core.errors import DefinitionError
from holdfast.web.auth import Principal
from holdfast.web.errors import Forbidden
from holdfast.web.ui.run_view.actions import read_form, redirect
from holdfast.web.ui.run_view.run_window import read_number
from holdfast.web.ui.site import Site, get_principal

_log = logging.getLogger("holdfast.web")
#: Concurrency limits, and accounts, that the page shows.
_MAX_LIMITS, _MAX_ACCOUNTS = 200, 20


class BudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of one account: what is spent, and the limit."""

    unit: str
    spent: float
    limit: float
    #: A person has set the limit.
    is_changed: bool

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


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """The accounts that the page shows, and how many it does not."""

    rows: Sequence[BudgetRow]
    more: int = 0


def can_change(principal: Principal) -> bool:
    """Whether the principal may change limits. A caller does not raise its own limits."""
    return principal.sees_all and principal.run_id is None and "control" in principal.scopes


async def read_limits(site: Site, principal: Principal) -> Sequence[LimitUsage]:
    """Return the concurrency limits; none for a principal that does not see all runs."""
    return (await site.store.list_limits())[:_MAX_LIMITS] if principal.sees_all else ()


async def read_budgets(app: App, principal: Principal) -> Budgets | None:
    """Return the accounts that are visible to the principal; `None` if the App has no budget.

    Raises:
        TablesError: they cannot be read.
    """
    budget = app.ports.budget
    if not isinstance(budget, Budget) or principal.run_id is not None:
        return None
    accounts = await budget.accounts()
    visible = [each for each in accounts if principal.sees_all or each.name == f"caller:{principal.caller_id}"]
    shown = [_make_budget_row(account) for account in visible[:_MAX_ACCOUNTS]]
    return Budgets(rows=shown, more=len(visible) - len(shown))


def _make_budget_row(account: Account) -> BudgetRow:
    lines = [
        BudgetLine(unit=unit, spent=getattr(account.spent, unit), limit=limit, is_changed=unit in account.changed)
        for unit, limit in account.limit.limits().items()
    ]
    return BudgetRow(account=account, lines=lines)


async def change_limit(site: Site, request: Request) -> Response:
    """Set or remove a concurrency limit."""
    principal, form = _require_change(request), await read_form(request)
    max_runs = None if form.get("action") == "remove" else read_number(form.get("max_runs", ""))
    limit = make_limit(form.get("kind", ""), form.get("name", "").strip(), max_runs or 0)
    await site.store.set_limit(limit.kind, limit.name, max_runs)
    _log.warning("limit of %s %s: %s, set by %s", limit.kind, limit.name, max_runs, principal.caller_id or "local")
    return redirect(request, "/fleet", "limited")


async def change_budget(site: Site, request: Request) -> Response:
    """Set the limit of an account, or take a change back."""
    principal, form, budget = _require_change(request), await read_form(request), site.app.ports.budget
    if not isinstance(budget, Budget):
        raise DefinitionError("the App of this page has no budget")
    account, unit = form.get("account", ""), form.get("unit", "")
    try:
        window = timedelta(seconds=float(form.get("window", "")))
        maximum = None if form.get("action") == "remove" else float(form.get("maximum", ""))
        await budget.set_limit(account, unit, maximum, window=window)
    except (ValueError, OverflowError):
        raise DefinitionError("the limit is not a number") from None
    except BudgetError as exc:
        raise DefinitionError(str(exc)) from exc
    _log.warning("budget of %s: %s %s, set by %s", account, maximum, unit, principal.caller_id or "local")
    return redirect(request, "/fleet", "limited")


def _require_change(request: Request) -> Principal:
    principal = get_principal(request)
    if not can_change(principal):
        raise Forbidden("only those who see all runs change limits")
    return principal
