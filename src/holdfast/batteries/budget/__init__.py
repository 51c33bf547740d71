"""budget: rolling limits on what callers, agents or labels may spend, counted across resumes and processes.

`App(agents, budget=Budget(Limit(tokens=1_000_000)))` limits every caller to a million tokens in seven days.
"""

from holdfast.batteries.budget.amounts import Amounts
from holdfast.batteries.budget.budget import Budget
from holdfast.batteries.budget.errors import BudgetError, BudgetExhausted, BudgetUnavailable
from holdfast.batteries.budget.ledger import Ledger, MemoryLedger, Reservation
from holdfast.batteries.budget.policies import Limit
from holdfast.batteries.budget.tables import TablesLedger

__all__ = [
    "Amounts",
    "Budget",
    "BudgetError",
    "BudgetExhausted",
    "BudgetUnavailable",
    "Ledger",
    "Limit",
    "MemoryLedger",
    "Reservation",
    "TablesLedger",
]
