"""The features that the suite tests, and the table of what each adapter supports."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from holdfast.testing.adapter_suite.script import AdapterDriver

#: Each feature, and what its tests show.
FEATURES = {
    "batches": "a kill in the middle of a batch repeats neither the model call nor finished calls",
    "model calls": "a kill in a model call repeats that call only",
    "writes": "a kill before or after any write, or inside any tool, changes nothing",
    "effects": "a `once` call in doubt is reported and not made again",
    "usage": "tokens and requests count over a resume",
    "deploys": "a removed tool defers the run, parks it, or is reported to the model",
    "approvals": "a call waits for a person; the other calls of its batch do not",
    "streams": "the text of a reply is shown as it arrives",
    "forks": "a fork continues after an edited result or message, and makes no recorded call again",
    "conversations": "each message is answered with the history before it",
}

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def tests_feature(name: str) -> Callable[[FunctionT], FunctionT]:
    """Mark a test of the suite with the feature that it tests."""
    assert name in FEATURES, name

    def mark(function: FunctionT) -> FunctionT:
        function.feature = name  # type: ignore[attr-defined]
        return function

    return mark


def make_table(drivers: Sequence[AdapterDriver]) -> str:
    """Return what each adapter supports as a Markdown table."""
    head = f"| | {' | '.join(driver.name for driver in drivers)} |"
    rows = [head, "|---" * (len(drivers) + 1) + "|"]
    for name, shown in FEATURES.items():
        cells = [driver.unsupported.get(name, "yes") for driver in drivers]
        rows.append(f"| **{name}**: {shown} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
