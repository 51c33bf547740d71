"""rate_limits: the requests and tokens per minute that a provider allows, shared by all processes of a fleet.

`App(agents, rate_limits=RateLimits(requests_per_minute=500))` lets runs wait instead of failing.
"""

from holdfast.batteries.rate_limits.rate_limits import RateLimits
from holdfast.batteries.rate_limits.windows import (
    RateLimit,
    RateLimitError,
    RateLimitsUnavailable,
    Window,
    WindowTable,
)

__all__ = [
    "RateLimit",
    "RateLimitError",
    "RateLimits",
    "RateLimitsUnavailable",
    "Window",
    "WindowTable",
]
