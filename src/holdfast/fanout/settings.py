"""The settings of a fan-out that have a good default."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from holdfast.core.agent import Bounds
from holdfast.core.errors import DefinitionError
from holdfast.core.ports import Budget, RunListener


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutSettings:
    """Limits, resuming and ports of a fan-out.

    Raises:
        DefinitionError: a concurrency limit is below 1.
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
    #: Stored in the checkpoint.
    verbose: bool = False
    #: Time that the models get to finish their step when the fan-out is stopped.
    shutdown_timeout: timedelta = timedelta(seconds=30)
    #: Stop on SIGINT and SIGTERM, unless the process has handlers for them.
    handle_signals: bool = True
    listener: RunListener | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        per_provider = self.max_per_provider
        limits = [per_provider] if isinstance(per_provider, int) else per_provider.values()
        if min([self.max_concurrency, *limits]) < 1:
            raise DefinitionError("max_concurrency and max_per_provider have to be at least 1")
