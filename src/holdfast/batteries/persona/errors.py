"""What can go wrong with personas."""

from holdfast.errors import HoldfastError


class PersonaError(HoldfastError):
    """A persona cannot be lowered into an agent as it is."""
