"""Limits: who may spend how much in which time."""

from datetime import timedelta

import msgspec

from holdfast.batteries.budget.amounts import UNITS
from holdfast.batteries.budget.errors import BudgetError
from holdfast.run.info import RunInfo


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
