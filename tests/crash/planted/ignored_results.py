"""A resume that ignores recorded results."""

from typing import Any

from tests.crash.agents import batches

from holdfast.checkpoint import factory
from holdfast.checkpoint.codec import Checkpoint, read_checkpoint


def _without_results(*arguments: Any) -> Checkpoint:
    checkpoint = read_checkpoint(*arguments)
    checkpoint.state.results.clear()
    return checkpoint


setattr(factory, "read_checkpoint", _without_results)  # noqa: B010, a plain assignment would not type-check

agent = batches
