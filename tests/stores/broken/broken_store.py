"""The base of stores that break the contract in one place, and name the tests of the suite that have to fail."""

from typing import ClassVar

from holdfast.stores.memory import MemoryStore


class BrokenStore(MemoryStore):
    """A memory store to be broken in one place."""

    #: The tests of the suite that have to fail.
    red: ClassVar[tuple[str, ...]]

    def __init__(self, location: str) -> None:
        super().__init__()
