"""A resume that ignores recorded results."""

from typing import Any

from tests.testing.crash.agents import batches

from holdfast.checkpoint import factory
from holdfast.checkpoint.codec import DecodedRun, decode_run


def _without_results(*arguments: Any) -> DecodedRun:
    checkpoint = decode_run(*arguments)
    checkpoint.state.results.clear()
    return checkpoint


setattr(factory, "decode_run", _without_results)  # noqa: B010, a plain assignment would not type-check

agent = batches
