"""The cells of a fan-out: one agent for each model, or for each pair of a model and a variant; and the settings."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.core.agents.agent import Agent, AgentSource, Bounds
from holdfast.core.agents.tool import Tool
from holdfast.core.errors import DefinitionError
from holdfast.core.execution.calling.child_runs import child_run_id
from holdfast.core.ports import Budget, RunListener
from holdfast.core.run.info import AgentDetails, RunInfo, check_run_id
from holdfast.core.validation import check_count, check_duration, check_flag, check_text, check_type

#: The names of the agents of all fan-outs begin with it.
AGENT_PREFIX = "fanout/"

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
    """An agent under the name of its cell, with the file tools of the workspace."""

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
    #: The child run of the fan-out's run.
    run_id: str


def make_cell_run_id(fanout_id: str, cell_id: str) -> str:
    """Return the id of a cell's run. It is the same in every attempt of the fan-out."""
    return child_run_id(fanout_id, 1, cell_id, cell_id)


def make_fanout_id(prompt: str, cell_ids: Sequence[str]) -> str:
    """Return the id of the fan-out of this prompt to these cells."""
    digest = hashlib.sha256(msgspec.json.encode([prompt, cell_ids])).hexdigest()
    return f"fanout-{digest[:16]}"


def build_cells(
    models: ModelSpecs, variants: Sequence[Variant], prompt: str, settings: CellSettings, fanout_id: str = ""
) -> tuple[str, tuple[Cell, ...]]:
    """Build a cell for every model and every variant, model by model. Return the id of the fan-out with them.

    Args:
        fanout_id: without it, the id is derived from the prompt and the cells.

    Raises:
        DefinitionError: there are no models, two have the same id, or something is not a model.
    """
    by_id = models if isinstance(models, Mapping) else _index_by_name(models)
    columns: Sequence[Variant | None] = list(variants) or [None]
    if len({variant.name for variant in variants}) < len(variants):
        raise DefinitionError("two variants have the same name")
    if not by_id:
        raise DefinitionError("a fan-out needs at least one model")
    pairs = [(model_id, variant) for model_id in by_id for variant in columns]
    cell_ids = [model_id if variant is None else f"{model_id}~{variant.name}" for model_id, variant in pairs]
    for cell_id, count in Counter(cell_ids).items():
        if count > 1:
            raise DefinitionError(f"two cells have the id {cell_id!r}: choose other names for models or variants")
    fanout_id = fanout_id or make_fanout_id(prompt, cell_ids)
    check_run_id(fanout_id)
    cells = []
    for cell_id, (model_id, variant) in zip(cell_ids, pairs, strict=True):
        source = _build_source(by_id[model_id], cell_id, settings)
        instructions = variant.instructions if variant is not None else None
        name = f"{AGENT_PREFIX}{fanout_id}/{cell_id}"
        cells.append(
            Cell(
                id=cell_id,
                provider=model_id.partition(":")[0],
                prompt=f"{variant.prompt}\n\n{prompt}" if variant is not None and variant.prompt else prompt,
                agent=CellAgent(name, source, instructions, settings.file_tools),
                run_id=make_cell_run_id(fanout_id, cell_id),
            )
        )
    return fanout_id, tuple(cells)


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
    """Limits, resuming and ports of a fan-out. With an App of your own, its ports and settings apply instead.

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
    #: The id of the fan-out's run. Without it, an id is derived from the prompt and the models.
    fanout_id: str = ""
    #: Resume the models that have failed.
    retry_failed: bool = False
    #: Log each step of each model at INFO level, with the logger `holdfast.fanout`. Stored in the checkpoint file: a
    #: resumed fan-out is verbose if either of them is.
    verbose: bool = False
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
        check_duration("shutdown_timeout", self.shutdown_timeout)
        for name in ("retry_failed", "verbose", "handle_signals"):
            check_flag(name, getattr(self, name))
