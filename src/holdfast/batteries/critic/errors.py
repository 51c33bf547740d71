"""What can go wrong with a critic."""

from holdfast.errors import HoldfastError


class CriticError(HoldfastError):
    """The critic was put together in a way that cannot work, or an escalator's answer is none."""
