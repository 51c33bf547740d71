"""What each error means and what to do about it: the docstrings of the error classes."""

import importlib
import inspect
from collections.abc import Iterator
from contextlib import suppress

from holdfast.errors import HoldfastError

#: The modules that define errors. Those of an extra that is not installed are left out.
ERROR_MODULES = (
    "holdfast.batteries.audit.audit",
    "holdfast.batteries.budget.budget",
    "holdfast.batteries.critic.escalation",
    "holdfast.batteries.definitions.store",
    "holdfast.batteries.limits.errors",
    "holdfast.batteries.persona",
    "holdfast.batteries.schedule.jobs",
    "holdfast.batteries.skill",
    "holdfast.checkpoint.errors",
    "holdfast.client.errors",
    "holdfast.cli.errors",
    "holdfast.compare.recipe",
    "holdfast.core.errors",
    "holdfast.core.events",
    "holdfast.core.turn",
    "holdfast.core.waiting",
    "holdfast.db.tables",
    "holdfast.errors",
    "holdfast.fanout.errors",
    "holdfast.runtime.mailer",
    "holdfast.testing.crash.checks",
    "holdfast.web.api.body",
    "holdfast.web.api.parameters",
    "holdfast.web.errors",
    "holdfast.web.ui.application",
)


def load_explanations() -> dict[str, str]:
    """Return the explanation of each error, by the name of its class, sorted."""
    for module in ERROR_MODULES:
        with suppress(ModuleNotFoundError):
            importlib.import_module(module)
    # Only those of the list: other modules may be loaded or not.
    errors = [kind for kind in _walk(HoldfastError) if kind.__module__ in ERROR_MODULES]
    return {
        kind.__name__: inspect.cleandoc(kind.__doc__ or "") for kind in sorted(errors, key=lambda kind: kind.__name__)
    }


def _walk(kind: type[HoldfastError]) -> Iterator[type[HoldfastError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _walk(subclass)
