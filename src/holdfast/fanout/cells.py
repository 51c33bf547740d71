"""From models and variants to the cells of a fan-out, each of which is an agent of its own."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.agent import Agent, AgentSource, Bounds
from holdfast.core.errors import DefinitionError
from holdfast.core.info import RunInfo
from holdfast.core.tool import Tool

#: A model callable, an agent of holdfast's or pydantic-ai's, or the name of a model such as `openai:gpt-5`.
ModelSpec = Any
#: By id; or agents and names of models, which have ids already.
ModelSpecs = Mapping[str, ModelSpec] | Sequence[ModelSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A lens: the same question put another way."""

    name: str
    #: In place of the agent's own. `None`: those stay.
    instructions: str | None = None
    #: Said before the prompt.
    prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSettings:
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
        return make_cell_run_id(self.id, fanout_id)


def make_cell_run_id(cell_id: str, fanout_id: str) -> str:
    """The id of a cell's run: the same whenever the fan-out is resumed."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", cell_id)[:60]
    return f"{fanout_id}:{readable}-{hashlib.sha256(cell_id.encode()).hexdigest()[:8]}"


def build_cells(
    models: ModelSpecs, variants: Sequence[Variant], prompt: str, settings: CellSettings
) -> tuple[Cell, ...]:
    """Every model through every lens, model by model.

    Raises:
        DefinitionError: there are none, two have the same id, or something is no model.
    """
    named = models if isinstance(models, Mapping) else _index_by_name(models)
    lenses: Sequence[Variant | None] = list(variants) or [None]
    if len({lens.name for lens in variants}) < len(variants):
        raise DefinitionError("two variants have the same name")
    if not named:
        raise DefinitionError("a fan-out needs at least one model")
    cells = [_build_cell(model, subject, lens, prompt, settings) for model, subject in named.items() for lens in lenses]
    for cell_id, count in Counter(cell.id for cell in cells).items():
        if count > 1:
            raise DefinitionError(f"two cells have the id {cell_id!r}: choose other names for models or variants")
    return tuple(cells)


def _index_by_name(models: Sequence[ModelSpec]) -> dict[str, ModelSpec]:
    named: dict[str, ModelSpec] = {}
    for subject in models:
        name = subject if isinstance(subject, str) else getattr(subject, "name", None)
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"{subject!r:.80} has no name: give the models as a mapping from ids")
        if name in named:
            raise DefinitionError(f"two models are named {name!r}: give them as a mapping from ids")
        named[name] = subject
    return named


def _build_cell(model_id: str, model: ModelSpec, variant: Variant | None, prompt: str, settings: CellSettings) -> Cell:
    cell_id = model_id if variant is None else f"{model_id}~{variant.name}"
    source = _build_source(model, cell_id, settings)
    return Cell(
        id=cell_id,
        provider=model_id.partition(":")[0],
        prompt=f"{variant.prompt}\n\n{prompt}" if variant is not None and variant.prompt else prompt,
        agent=CellAgent(f"fanout/{cell_id}", source, variant.instructions if variant else None, settings.file_tools),
    )


def _build_source(model: ModelSpec, cell_id: str, settings: CellSettings) -> AgentSource:
    if isinstance(getattr(model, "name", None), str) and hasattr(model, "build"):
        source: AgentSource = model
        return source
    bounds = settings.bounds or Bounds()
    from_elsewhere = any(kind.__module__.partition(".")[0] == "pydantic_ai" for kind in type(model).__mro__)
    if isinstance(model, str) or from_elsewhere:
        from holdfast.adapters.pydantic_ai import durable

        agent = durable(model, name=cell_id, bounds=bounds, stream=isinstance(model, str))
        return replace(agent, instructions=settings.instructions, tools=settings.tools)
    if callable(model):
        return Agent(name=cell_id, model=model, instructions=settings.instructions, tools=settings.tools, bounds=bounds)
    raise DefinitionError(f"{cell_id}: {model!r:.80} is neither a model nor an agent")
