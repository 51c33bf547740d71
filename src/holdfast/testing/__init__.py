"""For tests of code that builds on holdfast: a store's contract as tests, a clock, stores in other processes.

`holdfast.testing.store_suite` holds the contract and needs pytest; nothing else here does.
"""

from holdfast.testing.clock import ManualClock

__all__ = ["ManualClock"]
