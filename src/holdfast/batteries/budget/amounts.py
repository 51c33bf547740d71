"""What is counted."""

import msgspec

UNITS = ("tokens", "cost_usd", "runs", "seconds")


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, cost, runs and seconds, together."""

    tokens: int = 0
    cost_usd: float = 0.0
    runs: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(**{unit: getattr(self, unit) + getattr(other, unit) for unit in UNITS})

    def since(self, earlier: "Amounts") -> "Amounts":
        """What came on top of `earlier`; never negative, so that nothing is ever given back."""
        return Amounts(**{unit: max(0, getattr(self, unit) - getattr(earlier, unit)) for unit in UNITS})

    def at_least(self, other: "Amounts") -> "Amounts":
        """The larger of both, unit by unit."""
        return Amounts(**{unit: max(getattr(self, unit), getattr(other, unit)) for unit in UNITS})

    def in_order(self) -> tuple[float, ...]:
        """The amounts in the order of `UNITS`."""
        return tuple(getattr(self, unit) for unit in UNITS)


NOTHING = Amounts()
