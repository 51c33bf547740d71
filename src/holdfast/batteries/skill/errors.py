"""What can go wrong with skills."""

from holdfast.errors import HoldfastError


class SkillError(HoldfastError):
    """A skill cannot be lowered into an agent or a tool as it is."""
