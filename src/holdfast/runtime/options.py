"""The parameters of an App, checked."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast

from holdfast.checkpoint.checkpoint_store import CheckpointStore
from holdfast.checkpoint.store import RunStore
from holdfast.clock import Clock
from holdfast.config import CheckpointSettings, WorkerSettings
from holdfast.core.agents.agent import AgentRepository, AgentSource
from holdfast.core.errors import DefinitionError
from holdfast.core.observer import ObserverFactory
from holdfast.core.ports import Budget, Closeable, Critic, RateLimiter, RunListener, Telemetry, ToolProvider
from holdfast.core.validation import check_protocol, check_type
from holdfast.stores.from_url import store_from_url
from holdfast.stores.host import HostStore
from holdfast.stores.redacting import RedactingStore

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


def check_options(options: AppOptions) -> None:
    """Check the types of settings and ports, of which those that are `None` are not used.

    Raises:
        DefinitionError: one has a wrong type.
    """
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


def check_sequence(name: str, values: Iterable[_T]) -> tuple[_T, ...]:
    """Return the values of an argument that takes several.

    Raises:
        DefinitionError: it is a single one.
    """
    check_type(name, values, Iterable, f"a list of {name}")
    return tuple(values)


def find_store(store: RunStore | CheckpointStore | str | None, settings: CheckpointSettings) -> RunStore | None:
    """Return the store that an App uses, which redacts if the settings say so.

    Raises:
        DefinitionError: it is neither a store nor a URL.
        StoreError: the URL names no store.
    """
    if isinstance(store, type) or not isinstance(store, str | Closeable | CheckpointStore | None):
        raise DefinitionError(f"store is {store!r:.80}: give a store, the URL of one, or None")
    if isinstance(store, CheckpointStore) and not hasattr(store, "claim"):
        found: RunStore | None = HostStore(store)
    else:
        found = store_from_url(store or None) if isinstance(store, str) else cast("RunStore | None", store)
    if found is not None and settings.redact is not None:
        return RedactingStore(found, settings.redact)
    return found
