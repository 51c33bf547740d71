"""What can go wrong with skills."""

from holdfast.run.errors import DefinitionError


class SkillError(DefinitionError):
    """A skill cannot be lowered into an agent or a tool as it is."""
