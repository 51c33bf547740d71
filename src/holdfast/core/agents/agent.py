"""Agents, their phases and bounds, and model tiers: immutable data."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from string import Template
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, get_args, runtime_checkable

import msgspec

from holdfast.core.agents.retry import Retry
from holdfast.core.agents.tool import Tool, ToolSchema
from holdfast.core.agents.tool_context import CURRENT_REPLY
from holdfast.core.errors import DefinitionError, UnknownTool
from holdfast.core.run.info import AgentDetails, RunInfo
from holdfast.core.run.messages import NATIVE_CODEC, Message, Reply
from holdfast.core.run.result import OutputT_co
from holdfast.core.run.state import PhaseOutput
from holdfast.core.validation import check_callable, check_choice, check_count, check_duration, check_text, check_type
from holdfast.ids import make_id

if TYPE_CHECKING:
    from holdfast.core.loop import Loop

#: An async callable from the conversation and the tools to a reply. One that streams calls `holdfast.emit_text`.
Model = Callable[[Sequence[Message], Sequence[ToolSchema]], Awaitable[Reply]]

#: Gets the conversation before a step and returns a shorter one, or `None` to keep it.
Compact = Callable[[Sequence[Any]], Awaitable[Sequence[Any] | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of a run. Counting continues across resumes."""

    max_steps: int = 100
    #: Execution time, without the time spent interrupted. `None`: unbounded.
    max_runtime: timedelta | None = None
    #: Replies in a row that ask for the same tools with the same arguments.
    max_repeats: int = 5

    def __post_init__(self) -> None:
        check_count("max_steps", self.max_steps)
        check_count("max_repeats", self.max_repeats)
        if self.max_runtime is not None:
            check_duration("max_runtime", self.max_runtime, positive=True)


#: For a resumed run that was about to call a tool its agent no longer has: leave it to a process that has the tool,
#: report it to the model, or park the run for a person.
MissingTools = Literal["defer", "report", "park"]

#: Makes the prompt of a phase from the run (its prompt, its inputs) and the finished phases: text, or content parts in
#: the form of `RunInfo.content`.
PhasePrompt = Callable[[RunInfo, Sequence[PhaseOutput]], str | list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A named stage of a pipeline: a conversation of its own, or a workflow, whose output later phases can use.

    Fields that are `None` are taken from the agent.
    """

    name: str
    #: A template in which `$prompt` is the run's prompt, and `$NAME` the output of the phase NAME (the latest, if
    #: several share it) or else the run's input NAME; or a function of `RunInfo` and the finished phases.
    prompt: str | PhasePrompt = "$prompt"
    instructions: str | None = None
    tools: Sequence[Tool | Callable[..., Any] | str] | None = None
    model: Model | None = None
    #: For this phase alone. The agent's bounds hold for the whole run too.
    bounds: Bounds | None = None
    #: A workflow, or another agent, that executes this phase with a model, instructions, tools and bounds of its own.
    #: The steps of such a phase do not count towards `max_steps` of the agent.
    agent: "AgentSource | None" = None

    def __post_init__(self) -> None:
        check_text("the name of a phase", self.name)
        if not isinstance(self.prompt, str):
            check_callable(f"the prompt of phase {self.name}", self.prompt)
        if self.bounds is not None:
            check_type(f"bounds of phase {self.name}", self.bounds, Bounds)
        if self.agent is not None:
            self._check_agent(self.agent)

    def _check_agent(self, agent: "AgentSource") -> None:
        advice = "the agent or the workflow itself; to name one, call run_agent(name, ...) in a workflow"
        check_type(f"the agent of phase {self.name}", agent, AgentSource, advice)
        given = [name for name in ("model", "instructions", "tools") if getattr(self, name) is not None]
        if given:
            raise DefinitionError(f"phase {self.name}: give {', '.join(given)} to its agent {agent.name}")
        if isinstance(agent, Agent) and agent.phases:
            raise DefinitionError(f"phase {self.name}: its agent {agent.name} has phases too")

    def render(self, info: RunInfo, finished: Sequence[PhaseOutput]) -> str | list[Any]:
        """Return the phase's own prompt: text, or a list of content parts if the run's prompt has some."""
        if callable(self.prompt):
            return self.prompt(info, finished)
        values = {name: _to_text(value) for name, value in info.inputs.items()}
        values |= {phase.name: _to_text(phase.output) for phase in finished}
        if isinstance(info.prompt, str):
            return Template(self.prompt).safe_substitute({**values, "prompt": info.prompt})
        # The parts take the place of `$prompt`, which no other text equals.
        place = make_id()
        before, *texts = Template(self.prompt).safe_substitute({**values, "prompt": place}).split(place)
        parts = [before]
        for text in texts:
            parts += [*info.prompt, text]
        return [part for part in parts if part != ""] if texts else before


@dataclass(frozen=True, kw_only=True)
class Agent(Generic[OutputT_co]):
    """Instructions, a model, tools and bounds; or a pipeline of phases.

    A type checker knows the type of the output as `Agent[T]`.

    Raises:
        DefinitionError: a field has a wrong type or value.
    """

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
    missing_tools: MissingTools = "defer"
    #: How failed model calls are retried. When the retries are exhausted, the run is interrupted and resumes later.
    retry: Retry = field(default_factory=Retry)
    #: Executes another kind of agent. `None`: the native loop.
    loop: "Loop[OutputT_co] | None" = None

    def __post_init__(self) -> None:
        check_text("the name of an agent", self.name)
        if not self.name:
            raise DefinitionError("an agent needs a name: interrupted runs find their agent by it")
        self._check_fields()
        check_type(f"agent {self.name}: retry", self.retry, Retry)
        object.__setattr__(self, "tools", tuple(_to_tool(each) for each in self.tools))
        object.__setattr__(self, "phases", tuple(self.phases))
        index_tools(self.tools)
        own_phases = [phase for phase in self.phases if phase.agent is None]
        for profile in [self.profile(phase) for phase in own_phases] if self.phases else [self.profile()]:
            if profile.model is None and self.loop is None:
                raise DefinitionError(f"agent {self.name}: no model; give it one, or one to each of its phases")

    def _check_fields(self) -> None:
        label = f"agent {self.name}:"
        for name in ("instructions", "agent_id", "model_tier"):
            check_text(f"{label} {name}", getattr(self, name))
        check_type(f"{label} tools", self.tools, Iterable, "a list of tools")
        check_type(f"{label} phases", self.phases, Iterable, "a list of Phase")
        for phase in self.phases:
            check_type(f"{label} a phase", phase, Phase)
            self._check_phase_agent(phase)
        check_type(f"{label} bounds", self.bounds, Bounds)
        check_choice(f"{label} missing_tools", self.missing_tools, get_args(MissingTools))
        for name in ("model", "compact"):
            if getattr(self, name) is not None:
                check_callable(f"{label} {name}", getattr(self, name))
        if self.model is not None and not _takes_two_arguments(self.model):
            raise DefinitionError(f"{label} its model takes other arguments: write `async def model(messages, tools)`")

    def _check_phase_agent(self, phase: Phase) -> None:
        for source in () if phase.agent is None else (self, phase.agent):
            loop = AgentDetails.from_source(source).loop
            if loop is not None and loop.codec is not NATIVE_CODEC:
                raise DefinitionError(
                    f"agent {self.name}: {source.name} is of another framework, whose messages differ, and phase "
                    f"{phase.name} has an agent of its own: call {source.name} in a workflow, with run_agent()"
                )

    async def build(self, info: RunInfo) -> "Agent[OutputT_co]":
        """Return itself: an agent is its own source."""
        return self

    def profile(self, phase: Phase | None = None) -> "Profile":
        """Return the profile of one conversation of this agent, or of a phase."""
        own = Profile(
            instructions=self.instructions,
            model=self.model,
            tools=index_tools(self.tools),
            bounds=self.bounds,
            compact=self.compact,
            missing_tools=self.missing_tools,
            retry=self.retry,
        )
        if phase is None:
            return own
        if isinstance(phase.agent, Agent):
            bounds = phase.bounds or phase.agent.bounds
            return replace(phase.agent.profile(), bounds=bounds, phase_bounds=bounds)
        return Profile(
            instructions=own.instructions if phase.instructions is None else phase.instructions,
            model=phase.model or own.model,
            tools=own.tools if phase.tools is None else _resolve_phase_tools(phase.tools, own.tools),
            bounds=own.bounds,
            phase_bounds=phase.bounds,
            compact=own.compact,
            missing_tools=own.missing_tools,
            retry=own.retry,
        )


class AgentOptions(TypedDict, total=False):
    """The options that agents of other frameworks share with `Agent`, as keywords of `durable`."""

    bounds: Bounds
    retry: Retry
    compact: Compact
    missing_tools: MissingTools
    agent_id: str
    model_tier: str


@runtime_checkable
class ToolSource(Protocol):
    """What is not a tool and can be made one, such as a workflow."""

    def to_tool(self) -> Tool: ...


@runtime_checkable
class AgentSource(Protocol[OutputT_co]):
    """Builds an agent when a run begins or is resumed. An `Agent` is one.

    A source may have further attributes: see `AgentDetails`.
    """

    @property
    def name(self) -> str: ...

    async def build(self, info: RunInfo) -> Agent[OutputT_co]:
        """Return the agent for this run. An error fails the run.

        But a `DefinitionError` for a resumed run leaves the run to a process that can build its agent.
        """
        ...


@runtime_checkable
class AgentRepository(Protocol):
    """Agents that are stored instead of written in code. An App finds those that it knows now, by name."""

    @property
    def agents(self) -> Mapping[str, AgentSource]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The definition of one conversation."""

    instructions: str
    model: Model | None
    tools: Mapping[str, Tool]
    #: Bounds of the whole run.
    bounds: Bounds
    #: Bounds of this phase, beside those of the run.
    phase_bounds: Bounds | None = None
    compact: Compact | None = None
    missing_tools: MissingTools = "defer"
    retry: Retry = field(default_factory=Retry)

    @property
    def max_repeats(self) -> int:
        return (self.phase_bounds or self.bounds).max_repeats

    def with_tools(self, more: Sequence[Tool]) -> "Profile":
        return replace(self, tools=index_tools([*self.tools.values(), *more])) if more else self


def _takes_two_arguments(model: Model) -> bool:
    """Whether the model can be called with messages and tools, as far as its signature tells."""
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind((), ())
    except TypeError:
        return False
    return True


def index_tools(tools: Sequence[Any]) -> Mapping[str, Tool]:
    """Return the tools by name.

    Raises:
        DefinitionError: two have the same name.
    """
    table: dict[str, Tool] = {}
    for each in tools:
        if each.name in table:
            raise DefinitionError(f"two tools are named {each.name!r}: give one of them another name")
        table[each.name] = each
    return table


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _to_tool(given: Tool | Callable[..., Any]) -> Tool:
    if isinstance(given, Tool):
        return given
    return given.to_tool() if isinstance(given, ToolSource) else Tool(given)


def _resolve_phase_tools(
    given: Sequence[Tool | Callable[..., Any] | str], own: Mapping[str, Tool]
) -> Mapping[str, Tool]:
    for each in given:
        if isinstance(each, str) and each not in own:
            raise UnknownTool(each, sorted(own))
    return index_tools([own[each] if isinstance(each, str) else _to_tool(each) for each in given])


log: logging.Logger = logging.getLogger("holdfast.tiers")


def failover(*models: Model) -> Model:
    """Return a model that asks each model in turn until one replies. It raises the last one's error.

    Raises:
        DefinitionError: there are none.
    """
    if not models:
        raise DefinitionError("a chain needs at least one model")

    async def ask(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        for model in models[:-1]:
            try:
                return await model(messages, tools)
            except Exception as exc:  # a provider may raise anything
                log.warning("a model failed, trying the next one of its chain: %r", exc)
                if (stream := CURRENT_REPLY.get()) is not None:
                    stream.restart_draft()
        return await models[-1](messages, tools)

    return ask


class ModelTiers:
    """Names such as `fast` and `smart`, each for a chain of models. Unknown names mean the default tier."""

    def __init__(self, tiers: Mapping[str, Model | Sequence[Model]], *, default: str | None = None) -> None:
        """Make tiers.

        Args:
            default: the tier of unknown and empty names. Without it they are an error.

        Raises:
            DefinitionError: a chain is empty, or the default is not among the tiers.
        """
        self._models = {name: failover(*_to_chain(given)) for name, given in tiers.items()}
        if default is not None and default not in self._models:
            raise DefinitionError(f"the default tier {default!r} is not among {', '.join(self._models) or 'none'}")
        self._default = default

    def model(self, tier: str) -> Model:
        """Return the model of a tier.

        Raises:
            DefinitionError: there is no such tier, and no default.
        """
        name = tier if tier in self._models else self._default
        if name is None:
            raise DefinitionError(f"no model tier {tier!r}; known: {', '.join(self._models) or 'none'}")
        return self._models[name]


def _to_chain(given: Model | Sequence[Model]) -> Sequence[Model]:
    return given if isinstance(given, Sequence) else [given]
