"""Clauses about any sequence of calls at all."""

import asyncio

import pytest
from hypothesis.stateful import run_state_machine_as_test

from holdfast.testing.store_suite.machine import DurableStoreMachine, StoreMachine, machine_settings
from holdfast.testing.store_suite.reopening import DurableStoreUnderTest
from holdfast.testing.store_suite.subject import StoreUnderTest

# The machines run in a thread, because each of them runs an event loop of its own.


@pytest.mark.asyncio
class SequenceClauses(StoreUnderTest):
    async def test_any_sequence_of_calls_gives_what_a_plain_model_gives(self, location: str) -> None:
        class Machine(StoreMachine):
            build = staticmethod(lambda: self.build(location))

        await asyncio.to_thread(run_state_machine_as_test, Machine, settings=machine_settings(examples=20, steps=40))


@pytest.mark.asyncio
class CrashingSequenceClauses(DurableStoreUnderTest):
    async def test_any_sequence_of_calls_and_crashes_gives_what_a_plain_model_gives(self, location: str) -> None:
        class Machine(DurableStoreMachine):
            build = staticmethod(lambda: self.build(location))

        Machine.factory, Machine.location = self.factory, location
        for _ in range(5):
            few = machine_settings(examples=8, steps=30)
            await asyncio.to_thread(run_state_machine_as_test, Machine, settings=few)
            if Machine.cut_short:
                break
        assert Machine.cut_short, "a kill has to land while a call is under way"
