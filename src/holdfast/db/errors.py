"""What can go wrong with a battery's tables. The whole tree is drawn in `holdfast.errors`."""

from holdfast.errors import HoldfastError


class TablesError(HoldfastError):
    """A battery's tables could not be read or written. What was written before is safe."""


class TablesUnavailable(TablesError):
    """The database did not answer, is locked, or has no room. The same call may succeed later."""
