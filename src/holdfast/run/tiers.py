"""Model tiers: names such as `fast` and `smart`, and the chain of models that each stands for."""

import logging
from collections.abc import Mapping, Sequence

from holdfast.run.agent import Model
from holdfast.run.errors import DefinitionError
from holdfast.run.message import Message, Reply
from holdfast.run.tool import ToolSchema

log = logging.getLogger("holdfast.tiers")


def failover(*models: Model) -> Model:
    """One model of several: each is asked in turn until one replies. The last one's error is the chain's.

    Raises:
        DefinitionError: there are none.
    """
    if not models:
        raise DefinitionError("a chain of no models: give at least one")

    async def ask(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        for model in models[:-1]:
            try:
                return await model(messages, tools)
            except Exception as exc:  # whatever a provider raises; the next one is asked
                log.warning("a model failed, the next one of its chain is asked: %r", exc)
        return await models[-1](messages, tools)

    return ask


class Tiers:
    """Which models a tier stands for. What is not configured falls back to the default tier."""

    def __init__(self, tiers: Mapping[str, Model | Sequence[Model]], *, default: str | None = None) -> None:
        """Make tiers.

        Args:
            default: what an unknown or empty tier stands for; without it such a tier is an error.

        Raises:
            DefinitionError: a chain is empty, or the default is not among the tiers.
        """
        self._models = {name: failover(*_chain(given)) for name, given in tiers.items()}
        if default is not None and default not in self._models:
            raise DefinitionError(f"the default tier {default!r} is not among {', '.join(self._models) or 'none'}")
        self._default = default

    def model(self, tier: str) -> Model:
        """The model of a tier.

        Raises:
            DefinitionError: there is no such tier, and no default.
        """
        name = tier if tier in self._models else self._default
        if name is None:
            raise DefinitionError(f"no model tier {tier!r}: known are {', '.join(self._models) or 'none'}")
        return self._models[name]


def _chain(given: Model | Sequence[Model]) -> Sequence[Model]:
    return given if isinstance(given, Sequence) else [given]
