"""Errors of a battery's tables. `holdfast.errors` draws the whole tree."""

from holdfast.errors import HoldfastError


class TablesError(HoldfastError):
    """A battery's tables could not be read or written. Earlier writes are safe."""


class TablesUnavailable(TablesError):
    """The database did not answer, is locked, or has no room. The same call may succeed later."""
