"""limits: the requests and tokens per minute that a provider allows, shared by all processes of a fleet.

`App(agents, provider_limits=ProviderLimits(requests_per_minute=500))` lets runs wait instead of failing.
"""

from holdfast.batteries.limits.errors import LimitsError, LimitsUnavailable
from holdfast.batteries.limits.limits import ProviderLimits
from holdfast.batteries.limits.window import RateLimit, Window
from holdfast.batteries.limits.windows import MemoryWindows, TablesWindows, Windows

__all__ = [
    "LimitsError",
    "LimitsUnavailable",
    "MemoryWindows",
    "ProviderLimits",
    "RateLimit",
    "TablesWindows",
    "Window",
    "Windows",
]
