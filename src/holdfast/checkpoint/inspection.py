"""What a store can say about itself, beside what it says about runs."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """How a store itself stands, at one moment."""

    #: Of the schema or format found, and the newest that this code knows.
    version: int
    known_version: int
    #: Bytes that the store occupies, and how many of those are free for what comes.
    size: int
    free: int = 0
    #: What is wrong with it, in words. Damage to single runs is found by loading them.
    problems: Sequence[str] = ()


@runtime_checkable
class Inspectable(Protocol):
    """A store that can be inspected. Not every store has to be."""

    async def inspect(self) -> Inspection:
        """Look at the store as a whole. May take a while, changes nothing, and holds up no write for long."""
        ...
