"""budget: rolling limits on the spending of callers, agents or labels, counted across resumes and processes.

`App(agents, budget=Budget(Limit(tokens=1_000_000)))` limits every caller to a million tokens in seven days.
"""

from holdfast.batteries.budget.budget import Account, Budget, BudgetError, BudgetUnavailable, Limit
from holdfast.batteries.budget.ledger import Ledger, Reservation, Spend
from holdfast.core.run.waiting import BudgetExhausted

__all__ = [
    "Account",
    "Budget",
    "BudgetError",
    "BudgetExhausted",
    "BudgetUnavailable",
    "Ledger",
    "Limit",
    "Reservation",
    "Spend",
]
