"""Clauses about any sequence of calls at all."""

import asyncio

import pytest

from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing.store_suite.crash import THOROUGH
from holdfast.testing.store_suite.machine import CrashingStoreMachine, StoreMachine, try_sequences
from holdfast.testing.store_suite.reopening import DurableStoreUnderTest
from holdfast.testing.store_suite.subject import StoreUnderTest
from holdfast.testing.store_suite.world import CrashingWorld, World

# In a thread, because each world has an event loop of its own.


@pytest.mark.asyncio
class SequenceClauses(StoreUnderTest):
    async def test_any_sequence_of_calls_gives_what_a_plain_model_gives(self, location: str) -> None:
        def build() -> CheckpointStore:
            return self.build(location)

        await asyncio.to_thread(lambda: try_sequences(StoreMachine, World(build, self.sequence_seconds * THOROUGH)))


@pytest.mark.asyncio
class CrashingSequenceClauses(DurableStoreUnderTest):
    async def test_any_sequence_of_calls_and_crashes_gives_what_a_plain_model_gives(self, location: str) -> None:
        def build() -> CheckpointStore:
            return self.build(location)

        def try_them() -> int:
            seconds = 2 * self.sequence_seconds * THOROUGH
            world = CrashingWorld(build, seconds, factory=self.factory, location=location, quiet=self.quiet)
            try_sequences(CrashingStoreMachine, world)
            return world.cut_short

        assert await asyncio.to_thread(try_them), "a kill has to land while a call is under way"
