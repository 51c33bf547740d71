"""Tests of random call sequences, with and without kills in the middle of calls."""

import asyncio
import contextlib
import copy
import functools
from collections.abc import Coroutine
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from holdfast.checkpoint.claim import Claim
from holdfast.checkpoint.errors import CheckpointError
from holdfast.testing.store_process import ProcessExited
from holdfast.testing.store_suite.durability import DurableStoreUnderTest
from holdfast.testing.store_suite.environment import CrashingEnvironment, Environment
from holdfast.testing.store_suite.kills import THOROUGH
from holdfast.testing.store_suite.machine import SLOTS, ModelCall, StoreMachine, mostly_false
from holdfast.testing.store_suite.store_under_test import StoreUnderTest


class CrashingStoreMachine(StoreMachine):
    """Compares a store with the model, and kills its process in the middle of some calls."""

    environment: ClassVar[CrashingEnvironment]

    def call_both(self, call: Coroutine[Any, Any, Any], expected: ModelCall) -> None:
        if not self.has_effect(expected) or not self.environment.should_kill():
            super().call_both(self.environment.time_call(call), expected)
            return
        try:
            super().call_both(self.environment.kill_during(call), expected)
        except ProcessExited:
            self.resolve_interrupted_call(expected)
        finally:
            self.environment.replace_process()
        self.restart_workers()

    def has_effect(self, expected: ModelCall) -> bool:
        try:
            expected(copy.deepcopy(self.model))
        except CheckpointError:
            return False
        return True

    def restart_workers(self) -> None:
        """Register workers of the new process. Those of the old one are dead."""
        self.model.alive.clear()
        self.workers = [self.add_worker() for _ in SLOTS]

    def resolve_interrupted_call(self, expected: ModelCall) -> None:
        """Find out whether the interrupted call had its whole effect or none. Anything else is a failure."""
        before, after = self.model, copy.deepcopy(self.model)
        with contextlib.suppress(CheckpointError):
            expected(after)
        for model in (before, after):
            model.alive.clear()
        try:
            self.model = after
            self.environment.run(self.compare())
        except AssertionError:
            self.model = before
            self.environment.run(self.compare())

    def remove_in_both(self, run_id: str, claim: Claim | None) -> None:
        # An interrupted removal may leave some of the children: the contract does not demand that it is atomic.
        if self.model.has_children(run_id):
            with self.environment.pause_kills():
                super().remove_in_both(run_id, claim)
        else:
            super().remove_in_both(run_id, claim)

    @rule(restart_process=mostly_false)
    def reopen(self, restart_process: bool) -> None:
        if restart_process:
            self.environment.restart_process()
            self.restart_workers()
        else:
            self.environment.reopen_reader()


def run_sequences(machine: type[StoreMachine], environment: Environment) -> None:
    """Try sequences until the time has passed. A failing one is shrunk only in the thorough form, which takes long."""
    few_examples = settings(
        max_examples=3,
        stateful_step_count=40,
        deadline=None,
        database=None,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if THOROUGH > 1 else [])],
    )
    try:
        while not environment.is_time_up():
            run_state_machine_as_test(
                type(machine.__name__, (machine,), {"environment": environment}), settings=few_examples
            )
    finally:
        environment.close()


@pytest.mark.asyncio
class SequenceTests(StoreUnderTest):
    async def test_any_sequence_of_calls_matches_the_model(self, location: str) -> None:
        await asyncio.to_thread(self._run_sequences, location)

    def _run_sequences(self, location: str) -> None:
        """Run in a thread, because the environment has an event loop of its own."""
        build = functools.partial(self.build, location)
        run_sequences(StoreMachine, Environment(build, self.sequence_seconds * THOROUGH))


@pytest.mark.asyncio
class CrashingSequenceTests(DurableStoreUnderTest):
    async def test_any_sequence_of_calls_and_kills_matches_the_model(self, location: str) -> None:
        interrupted_calls = await asyncio.to_thread(self._run_crashing_sequences, location)
        assert interrupted_calls > 0, "no kill came in the middle of a call"

    def _run_crashing_sequences(self, location: str) -> int:
        environment = CrashingEnvironment(
            functools.partial(self.build, location),
            2 * self.sequence_seconds * THOROUGH,
            factory=self.factory,
            location=location,
            wait_until_idle=self.wait_until_idle,
        )
        run_sequences(CrashingStoreMachine, environment)
        return environment.interrupted_calls
