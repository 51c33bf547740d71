"""Random ids, tokens and pauses. The only module that draws random numbers."""

import base64
import random
from contextvars import ContextVar
from uuid import UUID

#: Unguessable, and safe after a fork: each number is read from the operating system.
_SYSTEM_RANDOM = random.SystemRandom()

#: Where this process draws from. A simulator sets a seeded generator in the context of each simulated process.
RANDOM: ContextVar[random.Random] = ContextVar("holdfast_random", default=_SYSTEM_RANDOM)


def make_id(size: int = 8) -> str:
    """Return `size` random bytes in hexadecimal. Eight are unique in any store, and short enough to type."""
    return RANDOM.get().randbytes(size).hex()


def make_token() -> str:
    """Return a secret of 192 bits that a URL can hold."""
    return base64.urlsafe_b64encode(RANDOM.get().randbytes(24)).decode()


def make_uuid() -> UUID:
    """Return a random UUID."""
    return UUID(int=RANDOM.get().getrandbits(128), version=4)


def draw_bits(count: int) -> int:
    """Return a random number of `count` bits."""
    return RANDOM.get().getrandbits(count)


def draw_between(low: float, high: float) -> float:
    """Return a random number between `low` and `high`, to spread pauses that would otherwise end at the same time."""
    return RANDOM.get().uniform(low, high)
