"""What can go wrong with personas."""

from holdfast.run.errors import DefinitionError


class PersonaError(DefinitionError):
    """A persona cannot be lowered into an agent as it is."""
