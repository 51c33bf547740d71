"""The cells of a fan-out: one agent for each model, or for each pair of a model and a variant; and the settings."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from holdfast.core.agents.agent import Agent, AgentSource, Bounds
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError
from holdfast.core.ports import Budget, RunListener
from holdfast.core.run.info import AgentDetails, RunInfo
from holdfast.core.validation import check_count, check_duration, check_flag, check_text, check_type

#: A model callable, an agent of holdfast or pydantic-ai, or the name of a model such as `openai:gpt-5`.
ModelSpec = Any
#: By id; or agents and names of models, whose names are the ids.
ModelSpecs = Mapping[str, ModelSpec] | Sequence[ModelSpec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A variant of the question that every model gets."""

    name: str
    #: Replaces the agent's instructions, unless it is `None`.
    instructions: str | None = None
    #: Precedes the prompt.
    prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSettings:
    """Settings that all cells share."""

    instructions: str = ""
    #: For models; an agent has its own.
    tools: Sequence[Tool | Callable[..., Any]] = ()
    bounds: Bounds | None = None
    #: For models and agents alike.
    file_tools: Sequence[Tool] = ()


class CellAgent:
    """An agent under the name of its cell, so that no other App claims its runs."""

    def __init__(self, name: str, inner: AgentSource, instructions: str | None, tools: Sequence[Tool]) -> None:
        self.name = name
        details = AgentDetails.from_source(inner)
        self.loop, self.agent_id, self.model_tier = details.loop, details.agent_id, details.model_tier
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
                f"agent {agent.name}: the proposed writes of an agent with phases or compaction cannot be restored "
                "after a crash: remove those, or use no workspace"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One model, or one pair of a model and a variant."""

    id: str
    provider: str
    prompt: str
    agent: CellAgent

    def run_id(self, fanout_id: str) -> str:
        return make_cell_run_id(self.id, fanout_id)


def make_cell_run_id(cell_id: str, fanout_id: str) -> str:
    """Return the id of a cell's run. It stays the same when the fan-out is resumed."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", cell_id)[:60]
    return f"{fanout_id}:{readable}-{hashlib.sha256(cell_id.encode()).hexdigest()[:8]}"


def build_cells(
    models: ModelSpecs, variants: Sequence[Variant], prompt: str, settings: CellSettings
) -> tuple[Cell, ...]:
    """Build a cell for every model and every variant, model by model.

    Raises:
        DefinitionError: there are no models, two have the same id, or something is not a model.
    """
    by_id = models if isinstance(models, Mapping) else _index_by_name(models)
    columns: Sequence[Variant | None] = list(variants) or [None]
    if len({variant.name for variant in variants}) < len(variants):
        raise DefinitionError("two variants have the same name")
    if not by_id:
        raise DefinitionError("a fan-out needs at least one model")
    cells = [
        _build_cell(model_id, model, variant, prompt, settings)
        for model_id, model in by_id.items()
        for variant in columns
    ]
    for cell_id, count in Counter(cell.id for cell in cells).items():
        if count > 1:
            raise DefinitionError(f"two cells have the id {cell_id!r}: choose other names for models or variants")
    return tuple(cells)


def _index_by_name(models: Sequence[ModelSpec]) -> dict[str, ModelSpec]:
    by_name: dict[str, ModelSpec] = {}
    for model in models:
        name = model if isinstance(model, str) else getattr(model, "name", None)
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"{model!r:.80} has no name: give the models as a mapping from ids")
        if name in by_name:
            raise DefinitionError(f"two models are named {name!r}: give them as a mapping from ids")
        by_name[name] = model
    return by_name


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
    if isinstance(model, AgentSource):
        return model
    bounds = settings.bounds or Bounds()
    is_pydantic_ai = any(kind.__module__.partition(".")[0] == "pydantic_ai" for kind in type(model).__mro__)
    if isinstance(model, str) or is_pydantic_ai:
        from holdfast.adapters.pydantic_ai import durable

        agent = durable(model, name=cell_id, bounds=bounds, stream=isinstance(model, str))
        return replace(agent, instructions=settings.instructions, tools=settings.tools)
    if callable(model):
        return Agent(name=cell_id, model=model, instructions=settings.instructions, tools=settings.tools, bounds=bounds)
    raise DefinitionError(f"{cell_id}: {model!r:.80} is neither a model nor an agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutSettings:
    """Limits, resuming and ports of a fan-out.

    Raises:
        DefinitionError: a field has a wrong type or value.
    """

    #: Runs at the same time, in all.
    max_concurrency: int = 16
    #: Runs at the same time per provider: the part of a model's id before the colon. A provider that a mapping does
    #: not name is limited by `max_concurrency` alone.
    max_per_provider: int | Mapping[str, int] = 4
    #: For models; an agent has its own.
    bounds: Bounds | None = None
    #: Prefix of the run ids. Without it, an id is derived from the prompt and the models.
    fanout_id: str = ""
    #: On a resume, resume failed models too.
    retry_failed: bool = False
    #: Log each step of each model at INFO level, with the logger `holdfast.fanout`. Stored in the checkpoint: a
    #: resumed fan-out is verbose if either of them is.
    verbose: bool = False
    #: How long the responses of a finished fan-out stay readable in the store. Zero: they are not kept.
    retention: timedelta = timedelta(days=7)
    #: Time that the models get to finish their step when the fan-out is stopped.
    shutdown_timeout: timedelta = timedelta(seconds=30)
    #: Stop on SIGINT and SIGTERM, unless the process has handlers for them.
    handle_signals: bool = True
    listener: RunListener | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        check_count("max_concurrency", self.max_concurrency)
        limits = self.max_per_provider if isinstance(self.max_per_provider, Mapping) else {"": self.max_per_provider}
        for provider, limit in limits.items():
            check_count(f"max_per_provider {provider}".rstrip(), limit)
        if self.bounds is not None:
            check_type("bounds", self.bounds, Bounds)
        check_text("fanout_id", self.fanout_id)
        check_duration("retention", self.retention)
        check_duration("shutdown_timeout", self.shutdown_timeout)
        for name in ("retry_failed", "verbose", "handle_signals"):
            check_flag(name, getattr(self, name))
