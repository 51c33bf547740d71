"""The parameters of an App: checks them, and makes the ports of its runs."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypedDict, TypeVar

from holdfast.checkpoint.checkpoint_store import CheckpointStore
from holdfast.checkpoint.store import RunStore
from holdfast.clock import Clock
from holdfast.config import CheckpointSettings, WorkerSettings
from holdfast.core.agents.agent import AgentRepository, AgentSource
from holdfast.core.errors import DefinitionError
from holdfast.core.observer import ObserverFactory
from holdfast.core.ports import (
    Budget,
    Critic,
    Ports,
    RateLimiter,
    RunListener,
    Telemetry,
    ToolProvider,
    ToolProviders,
)
from holdfast.core.validation import check_protocol, check_type
from holdfast.runtime.agent_registry import AgentRegistry
from holdfast.runtime.operations.store_services import StoreServices
from holdfast.runtime.operations.stored_background import StoredBackground

if TYPE_CHECKING:
    from holdfast.batteries.schedule import Schedule

_T = TypeVar("_T")


class AppOptions(TypedDict, total=False):
    """The parameters of `App`, for `App.replace`."""

    agents: Iterable[AgentSource | AgentRepository]
    store: RunStore | CheckpointStore | str | None
    checkpoint: CheckpointSettings
    worker: WorkerSettings | bool
    audit: ObserverFactory | None
    budget: Budget | None
    rate_limits: RateLimiter | None
    critic: Critic | None
    listener: RunListener | None
    tools: Iterable[ToolProvider]
    schedule: "Schedule | None"
    telemetry: Telemetry | None
    clock: Clock


_PORTS: Mapping[str, type] = {
    "audit": ObserverFactory,
    "budget": Budget,
    "rate_limits": RateLimiter,
    "critic": Critic,
    "listener": RunListener,
    "telemetry": Telemetry,
}


def check_options(options: AppOptions) -> AgentRegistry:
    """Check the types of settings and ports; `None` means not used. Returns the agents.

    Raises:
        DefinitionError: one has a wrong type.
    """
    options["agents"] = _check_sequence("agents", options["agents"])
    options["tools"] = _check_sequence("tools", options["tools"])
    check_type("checkpoint", options["checkpoint"], CheckpointSettings)
    check_type("worker", options["worker"], WorkerSettings)
    check_protocol("clock", options["clock"], Clock)
    for name, protocol in _PORTS.items():
        if options[name] is not None:  # type: ignore[literal-required]
            check_protocol(name, options[name], protocol)  # type: ignore[literal-required]
    for provider in options["tools"]:
        check_protocol("tools", provider, ToolProvider)
    if options["schedule"] is not None:
        from holdfast.batteries.schedule import Schedule  # an App without one does not load it

        check_type("schedule", options["schedule"], Schedule)
        if options["store"] is None:
            raise DefinitionError("schedule submits runs, and this App has no store: give it one")
    return AgentRegistry(options["agents"])


def _check_sequence(name: str, values: Iterable[_T]) -> tuple[_T, ...]:
    check_type(name, values, Iterable, f"a list of {name}")
    return tuple(values)


def make_ports(options: AppOptions, services: StoreServices | None, agents: Mapping[str, AgentSource]) -> Ports:
    """Return the ports of every run of an App."""
    observers = (options["audit"], options["telemetry"], None if services is None else services.hub.live)
    tools = tuple(options["tools"])
    return Ports(
        checkpoints=None if services is None else services.checkpoints,
        observers=tuple(each for each in observers if each is not None),
        budget=options["budget"],
        rate_limiter=options["rate_limits"],
        critic=options["critic"],
        listener=options["listener"],
        extra_tools=ToolProviders(tools) if tools else None,
        background=None if services is None else StoredBackground(services.checkpoints),
        agents=agents,
    )
