"""What can go wrong with a budget."""

from datetime import timedelta

from holdfast.errors import HoldfastError
from holdfast.run.errors import RunInterrupted, RunParked


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
