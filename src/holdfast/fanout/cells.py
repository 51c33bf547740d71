"""From models and variants to the cells of a fan-out, each of which is an agent of its own."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.run.agent import Agent, AgentSource, Bounds
from holdfast.run.errors import DefinitionError
from holdfast.run.info import RunInfo
from holdfast.run.tool import Tool

#: A model callable, an agent of holdfast's or pydantic-ai's, or the name of a model such as `openai:gpt-5`.
Subject = Any
#: By id; or agents and names of models, which have ids already.
Subjects = Mapping[str, Subject] | Sequence[Subject]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A lens: the same question put another way."""

    name: str
    #: In place of the agent's own. `None`: those stay.
    instructions: str | None = None
    #: Said before the prompt.
    prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What every cell is given."""

    instructions: str = ""
    #: For models; an agent has its own.
    tools: Sequence[Tool | Callable[..., Any]] = ()
    bounds: Bounds | None = None
    #: For models and agents alike.
    file_tools: Sequence[Tool] = ()


class CellAgent:
    """An agent under the name of its cell, so that no other App takes its runs for those of an agent of its own."""

    def __init__(self, name: str, inner: AgentSource, instructions: str | None, tools: Sequence[Tool]) -> None:
        self.name = name
        self.loop = getattr(inner, "loop", None)
        self.agent_id = getattr(inner, "agent_id", "")
        self.model_tier = getattr(inner, "model_tier", "")
        self._inner, self._instructions, self._tools = inner, instructions, tools
        if isinstance(inner, Agent):
            self._check(inner)

    async def build(self, info: RunInfo) -> Agent:
        agent = await self._inner.build(info)
        self._check(agent)
        instructions = agent.instructions if self._instructions is None else self._instructions
        return replace(agent, name=self.name, instructions=instructions, tools=(*agent.tools, *self._tools))

    def _check(self, agent: Agent) -> None:
        if self._tools and (agent.phases or agent.compact is not None):
            raise DefinitionError(
                f"agent {agent.name}: what an agent with phases or compaction has proposed cannot be known after a "
                "crash: leave those out, or give the fan-out no folder"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model, or one model through one lens."""

    id: str
    provider: str
    prompt: str
    agent: CellAgent

    def run_id(self, fanout_id: str) -> str:
        return run_id_of(self.id, fanout_id)


def run_id_of(cell_id: str, fanout_id: str) -> str:
    """The id of a cell's run: the same whenever the fan-out is resumed."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", cell_id)[:60]
    return f"{fanout_id}:{readable}-{hashlib.sha256(cell_id.encode()).hexdigest()[:8]}"


def cells_of(subjects: Subjects, variants: Sequence[Variant], prompt: str, setting: Setting) -> tuple[Cell, ...]:
    """Every model through every lens, model by model.

    Raises:
        DefinitionError: there are none, two have the same id, or something is no model.
    """
    named = subjects if isinstance(subjects, Mapping) else _named(subjects)
    lenses: Sequence[Variant | None] = list(variants) or [None]
    if len({lens.name for lens in variants}) < len(variants):
        raise DefinitionError("two variants have the same name")
    if not named:
        raise DefinitionError("a fan-out needs at least one model")
    cells = [_cell(model, subject, lens, prompt, setting) for model, subject in named.items() for lens in lenses]
    for cell_id, count in Counter(cell.id for cell in cells).items():
        if count > 1:
            raise DefinitionError(f"two cells have the id {cell_id!r}: choose other names for models or variants")
    return tuple(cells)


def _named(subjects: Sequence[Subject]) -> dict[str, Subject]:
    named: dict[str, Subject] = {}
    for subject in subjects:
        name = subject if isinstance(subject, str) else getattr(subject, "name", None)
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"{subject!r:.80} has no name: give the models as a mapping from ids")
        if name in named:
            raise DefinitionError(f"two models are named {name!r}: give them as a mapping from ids")
        named[name] = subject
    return named


def _cell(model_id: str, subject: Subject, lens: Variant | None, prompt: str, setting: Setting) -> Cell:
    cell_id = model_id if lens is None else f"{model_id}~{lens.name}"
    source = _source(subject, cell_id, setting)
    return Cell(
        id=cell_id,
        provider=model_id.partition(":")[0],
        prompt=f"{lens.prompt}\n\n{prompt}" if lens is not None and lens.prompt else prompt,
        agent=CellAgent(f"fanout/{cell_id}", source, lens.instructions if lens else None, setting.file_tools),
    )


def _source(subject: Subject, cell_id: str, setting: Setting) -> AgentSource:
    if isinstance(getattr(subject, "name", None), str) and hasattr(subject, "build"):
        source: AgentSource = subject
        return source
    bounds = setting.bounds or Bounds()
    from_elsewhere = any(kind.__module__.partition(".")[0] == "pydantic_ai" for kind in type(subject).__mro__)
    if isinstance(subject, str) or from_elsewhere:
        from holdfast.adapters.pydantic_ai import durable

        agent = durable(subject, name=cell_id, bounds=bounds, stream=isinstance(subject, str))
        return replace(agent, instructions=setting.instructions, tools=setting.tools)
    if callable(subject):
        return Agent(name=cell_id, model=subject, instructions=setting.instructions, tools=setting.tools, bounds=bounds)
    raise DefinitionError(f"{cell_id}: {subject!r:.80} is neither a model nor an agent")
