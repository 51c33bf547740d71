"""One call from an agent of pydantic-ai to one of holdfast."""

from collections.abc import Mapping
from typing import Any

from pydantic_ai import Agent as PydanticAIAgent
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.usage import UsageLimits

from holdfast.adapters.pydantic_ai.loop import ForRun, PydanticAILoop, RunOptions
from holdfast.adapters.pydantic_ai.policy import Effects, ToolPolicies
from holdfast.run.agent import Agent, Bounds, Compact, RemovedTools
from holdfast.run.effects import InDoubt, Reconcile
from holdfast.run.errors import DefinitionError


def durable(
    agent: AbstractAgent[Any, Any] | str,
    *,
    name: str | None = None,
    deps: Any = None,
    history: ForRun | None = None,
    effects: Effects | None = None,
    reconcile: Mapping[str, Reconcile] | None = None,
    in_doubt: Mapping[str, InDoubt] | None = None,
    bounds: Bounds | None = None,
    usage_limits: UsageLimits | None = None,
    compact: Compact | None = None,
    removed_tools: RemovedTools = "leave",
    stream: bool = False,
    agent_id: str = "",
    model_tier: str = "",
) -> Agent:
    """Make an agent of pydantic-ai durable: its runs survive, on every store, with every promise.

    The agent itself is not changed, and can be used as before beside this.

    Args:
        agent: an agent; or a model by its name, such as `openai:gpt-5`, for an agent without tools.
        name: interrupted runs find their agent by it; without it the agent's own name.
        deps: the agent's dependencies, or a function of `RunInfo` that makes them, sync or async, for each run and
            again at each resume. An `@asynccontextmanager` function is entered and left with the run.
        history: a function of `RunInfo` for the messages that a new run begins with. Asked once per run.
        effects: what calling each tool twice would do, by the tool's name or as a function of its definition. What it
            does not say may be said on the tool, as `metadata={"effect": "pure"}`; a tool of which nobody says
            anything is `once`.
        reconcile: asked, after a crash, what became of a call of this tool whose result was never recorded.
        in_doubt: what is done about such a call if nobody knows: `tell` the model, or `park` the run for a person.
        usage_limits: pydantic-ai's, over the whole run, resumes included. Without them only `bounds` hold.
        compact: looks at the messages before a step and returns fewer to go on with, or `None`.
        removed_tools: what becomes of a resumed run that was about to call a tool that the agent no longer has.
        stream: ask for replies as streams and let their text out as it comes, as `text` events of the delivery.

    Raises:
        DefinitionError: the agent has no name, or the options contradict each other.
    """
    if isinstance(agent, str):
        agent = PydanticAIAgent(agent, name=agent)
    name = name or agent.name
    if not name:
        raise DefinitionError("the agent has no name: give it one with name=, interrupted runs find their agent by it")
    policies = ToolPolicies(effects=effects or {}, reconcile=reconcile or {}, in_doubt=in_doubt or {})
    options = RunOptions(deps=deps, history=history, policies=policies, usage_limits=usage_limits, stream=stream)
    return Agent(
        name=name,
        loop=PydanticAILoop(agent, options),
        bounds=bounds or Bounds(),
        compact=compact,
        removed_tools=removed_tools,
        agent_id=agent_id,
        model_tier=model_tier,
    )
