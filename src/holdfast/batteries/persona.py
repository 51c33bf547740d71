"""persona: stored, versioned definitions of agents.

`App([Personas(tiers, tools)])` keeps them in the store of the App, which runs them as the agents `OWNER/NAME`.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.batteries.definitions.repository import (
    Definition,
    DefinitionRepository,
    DefinitionSource,
    from_markdown,
    to_markdown,
)
from holdfast.core.agents.agent import Agent, Phase
from holdfast.core.errors import DefinitionError
from holdfast.core.run.info import RunInfo

__all__ = [
    "Persona",
    "PersonaError",
    "PersonaPhase",
    "Personas",
    "allowed_by",
    "export_persona",
    "import_persona",
]


class PersonaError(DefinitionError):
    """No agent can be built from a persona.

    What to do: Correct the persona as the message says.
    """


class PersonaPhase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One phase of a persona. A field that is `None` is inherited from the persona."""

    name: str
    prompt: str = "$prompt"
    instructions: str | None = None
    tools: list[str] | None = None
    model_tier: str | None = None


class Persona(Definition, frozen=True, kw_only=True):
    """The definition of an agent, as plain data."""

    instructions: str = ""
    phases: list[PersonaPhase] = msgspec.field(default_factory=list)
    #: Names of agents and skills that it may call as tools.
    palette: list[str] = msgspec.field(default_factory=list)
    #: A cron expression, for a host that schedules its personas.
    schedule: str | None = None


class Personas(DefinitionRepository[Persona]):
    """Stores, lists and shares personas, and builds agents from them."""

    kind = "persona"
    error = PersonaError
    definition_type = Persona

    def build_agent(self, definition: Persona) -> Agent:
        """Build the agent that a persona describes."""
        return Agent(
            name=f"{definition.owner}/{definition.name}",
            instructions=definition.instructions,
            model=self._tiers.model(definition.model_tier),
            model_tier=definition.model_tier,
            tools=self.find_tools(definition, definition.tools),
            phases=[self._build_phase(definition, phase) for phase in definition.phases],
        )

    def _build_phase(self, persona: Persona, phase: PersonaPhase) -> Phase:
        return Phase(
            name=phase.name,
            prompt=phase.prompt,
            instructions=phase.instructions,
            tools=None if phase.tools is None else self.find_tools(persona, phase.tools),
            model=None if phase.model_tier is None else self._tiers.model(phase.model_tier),
        )


def allowed_by(sources: Iterable[DefinitionSource[Persona]]) -> Callable[[RunInfo], Sequence[str]]:
    """Return a filter for `AgentToolProvider(allowed=...)`: a run may call the names in its persona's palette."""
    by_name = {source.name: source for source in sources}

    def allowed(info: RunInfo) -> Sequence[str]:
        source = by_name.get(info.agent_name)
        return () if source is None else source.definition.palette

    return allowed


def export_persona(persona: Persona) -> str:
    """Return the persona as Markdown: the instructions as text, all other fields as front matter."""
    return to_markdown(persona, "instructions")


def import_persona(document: str) -> Persona:
    """Parse a Markdown document into a persona.

    Raises:
        MalformedDefinition: the document is invalid.
    """
    return from_markdown(document, Persona, "instructions")
