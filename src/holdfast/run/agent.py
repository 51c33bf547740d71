"""Agents and their phases: what is to be run, as plain immutable data."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from string import Template
from typing import TYPE_CHECKING, Any, Literal, Protocol

from holdfast.run.errors import DefinitionError, UnknownTool
from holdfast.run.info import RunInfo
from holdfast.run.message import Message, Reply
from holdfast.run.state import PhaseOutput
from holdfast.run.tool import Tool, ToolSchema

if TYPE_CHECKING:
    from holdfast.run.loop import Loop

#: A model is one async callable: the conversation and the tools in, a reply out.
Model = Callable[[Sequence[Message], Sequence[ToolSchema]], Awaitable[Reply]]

#: Looks at the conversation before a step and returns a shorter one to go on with, or `None` to leave it.
Compact = Callable[[Sequence[Any]], Awaitable[Sequence[Any] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How far a run may go before it is ended. All of them count on over a resume."""

    max_iterations: int = 100
    #: Time the run is driven; time spent interrupted does not count. `None`: no end.
    max_runtime: timedelta | None = None
    #: Replies in a row that ask for the same tools with the same arguments.
    max_repeats: int = 5

    def __post_init__(self) -> None:
        if self.max_iterations < 1 or self.max_repeats < 1:
            raise DefinitionError("max_iterations and max_repeats have to be at least 1")
        if self.max_runtime is not None and self.max_runtime <= timedelta(0):
            raise DefinitionError(f"max_runtime is {self.max_runtime}: give a positive duration, or None for no end")


#: What becomes of a resumed run that was about to call a tool its agent no longer has: it is left for a process that
#: knows the tool, or the model is told, or the run is parked for a person.
RemovedTools = Literal["leave", "tell", "park"]

#: What the prompt of a phase may be made from: the run's prompt and the finished phases.
PhasePrompt = Callable[[str, Sequence[PhaseOutput]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A named stage of a pipeline: a loop of its own whose output later phases can use.

    What is left `None` is taken from the agent.
    """

    name: str
    #: A template in which `$prompt` is the run's prompt and `$NAME` the output of the phase NAME (the latest, if
    #: several share it); or a function of the run's prompt and the finished phases.
    prompt: str | PhasePrompt = "$prompt"
    instructions: str | None = None
    tools: Sequence[Tool | Callable[..., Any] | str] | None = None
    model: Model | None = None
    #: For this phase alone. The agent's bounds hold for the whole run all the same.
    bounds: Bounds | None = None

    def render(self, prompt: str, finished: Sequence[PhaseOutput]) -> str:
        """The phase's own prompt."""
        if callable(self.prompt):
            return self.prompt(prompt, finished)
        outputs = {phase.name: phase.output for phase in finished}
        return Template(self.prompt).safe_substitute({**outputs, "prompt": prompt})


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """What to run: instructions, a model, tools, and bounds; or a pipeline of phases."""

    name: str
    model: Model | None = None
    instructions: str = ""
    #: Tools, or plain functions, which become `once` tools.
    tools: Sequence[Tool | Callable[..., Any]] = ()
    phases: Sequence[Phase] = ()
    bounds: Bounds = field(default_factory=Bounds)
    agent_id: str = ""
    model_tier: str = ""
    compact: Compact | None = None
    removed_tools: RemovedTools = "leave"
    #: Drives another kind of agent. `None`: the native loop.
    loop: "Loop | None" = None

    def __post_init__(self) -> None:
        if not self.name:
            raise DefinitionError("an agent needs a name: interrupted runs find their agent by it")
        object.__setattr__(self, "tools", tuple(_as_tool(each) for each in self.tools))
        object.__setattr__(self, "phases", tuple(self.phases))
        tool_table(self.tools)
        for profile in [self.profile(phase) for phase in self.phases] or [self.profile()]:
            if profile.model is None and self.loop is None:
                raise DefinitionError(f"agent {self.name}: no model; give it one, or one to each of its phases")

    async def build(self, info: RunInfo) -> "Agent":
        """An agent is its own source."""
        return self

    def profile(self, phase: Phase | None = None) -> "Profile":
        """What one loop of this agent works with: the agent's own, or a phase's."""
        own = Profile(
            instructions=self.instructions,
            model=self.model,
            tools=tool_table(self.tools),
            bounds=self.bounds,
            compact=self.compact,
            removed_tools=self.removed_tools,
        )
        if phase is None:
            return own
        return Profile(
            instructions=own.instructions if phase.instructions is None else phase.instructions,
            model=phase.model or own.model,
            tools=own.tools if phase.tools is None else _phase_tools(phase.tools, own.tools),
            bounds=own.bounds,
            phase_bounds=phase.bounds,
            compact=own.compact,
            removed_tools=own.removed_tools,
        )


class AgentSource(Protocol):
    """Anything that can become an agent when a run begins or is resumed. An `Agent` is one."""

    @property
    def name(self) -> str: ...

    async def build(self, info: RunInfo) -> Agent:
        """The agent for this run. An error from here ends the run, and its checkpoint with it.

        But a `DefinitionError` about a run that is resumed leaves it for a process that can build its agent.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What one loop works with."""

    instructions: str
    model: Model | None
    tools: Mapping[str, Tool]
    #: Of the whole run.
    bounds: Bounds
    #: Of this phase, beside those of the run.
    phase_bounds: Bounds | None = None
    compact: Compact | None = None
    removed_tools: RemovedTools = "leave"

    @property
    def max_repeats(self) -> int:
        return (self.phase_bounds or self.bounds).max_repeats

    def with_tools(self, more: Sequence[Tool]) -> "Profile":
        return replace(self, tools=tool_table([*self.tools.values(), *more])) if more else self


def tool_table(tools: Sequence[Any]) -> Mapping[str, Tool]:
    """Tools by name.

    Raises:
        DefinitionError: two have the same name.
    """
    table: dict[str, Tool] = {}
    for each in tools:
        if each.name in table:
            raise DefinitionError(f"two tools are named {each.name!r}: give one of them another name")
        table[each.name] = each
    return table


def _as_tool(given: Tool | Callable[..., Any]) -> Tool:
    return given if isinstance(given, Tool) else Tool(given)


def _phase_tools(given: Sequence[Tool | Callable[..., Any] | str], own: Mapping[str, Tool]) -> Mapping[str, Tool]:
    for each in given:
        if isinstance(each, str) and each not in own:
            raise UnknownTool(each, sorted(own))
    return tool_table([own[each] if isinstance(each, str) else _as_tool(each) for each in given])
