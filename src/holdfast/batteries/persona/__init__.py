"""persona: stored, versioned definitions of agents, which lower into the kernel's `Agent`."""

from holdfast.batteries.persona.errors import PersonaError
from holdfast.batteries.persona.persona import (
    Persona,
    PersonaPhase,
    Personas,
    allowed_by,
    export_persona,
    import_persona,
)

__all__ = [
    "Persona",
    "PersonaError",
    "PersonaPhase",
    "Personas",
    "allowed_by",
    "export_persona",
    "import_persona",
]
