"""Kills in the middle of a call, and random sequences of calls, with and without kills."""

import asyncio
import contextlib
import copy
import functools
import os
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from holdfast.checkpoint.errors import CheckpointError, RunNotFound
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import Mail, Release, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim
from holdfast.clock import SYSTEM_CLOCK
from holdfast.testing.store_processes.store_environment import CrashingEnvironment, Environment
from holdfast.testing.store_processes.store_machine import SLOTS, ModelCall, StoreMachine, mostly_false
from holdfast.testing.store_processes.store_process import ProcessExited, StoreProcess
from holdfast.testing.store_processes.store_under_test import (
    StoreUnderTest,
    create_claimed,
    create_waiting,
    make_append,
    make_entries,
    make_mail,
    make_run,
)
from holdfast.testing.store_tests.race_tests import add_process_worker
from holdfast.testing.store_tests.reopen_tests import DurableStoreUnderTest

#: With `HOLDFAST_TEST_THOROUGH` set, the randomized tests run ten times as long.
THOROUGH = 10 if os.environ.get("HOLDFAST_TEST_THOROUGH") else 1

WRITERS = 4
KILLS = 5 * THOROUGH
#: Kills of each kind of call.
KILLS_PER_CALL = 2 * THOROUGH


def _make_journal() -> list[Entry]:
    return list(make_run().entries)


@dataclass
class _Writer:
    """One run, its acknowledged writes, and the write whose outcome is unknown."""

    run_id: str
    number: int = 0
    journal: list[Entry] = field(default_factory=_make_journal)
    next_seq: int = 1
    progress: bytes = b"progress"
    #: The ids of its unread mail.
    unread: list[str] = field(default_factory=list)
    unacknowledged: Append | Mail | None = None

    def next_mail(self) -> Mail:
        self.number += 1
        return make_mail(f"mail-{self.number}", body=os.urandom(300))

    def next_write(self) -> Append:
        """Return a write of entries of different sizes that consumes all mail. Every fifth write is a rewrite."""
        self.number += 1
        sizes = random.sample((10, 300, 4_000, 70_000), k=3)
        bodies = (f"{self.run_id} {self.number} {size} ".encode() + os.urandom(size) for size in sizes)
        return Append(
            entries=make_entries(self.next_seq, *bodies),
            progress=b"%d" % self.number,
            rewrite=self.number % 5 == 0,
            step_finished=True,
            consumed=list(self.unread),
        )

    def apply(self, write: Append | Mail) -> None:
        if isinstance(write, Mail):
            self.unread.append(write.mail_id)
            return
        self.unread = [mail_id for mail_id in self.unread if mail_id not in write.consumed]
        self.journal = [*([] if write.rewrite else self.journal), *write.entries]
        self.next_seq += len(write.entries)
        self.progress = write.progress

    async def write_until_killed(self, store: RunStore, claim: Claim, acknowledged: asyncio.Queue[None]) -> None:
        with contextlib.suppress(ProcessExited):
            while True:
                mail = self.unacknowledged = self.next_mail()
                await store.post(self.run_id, mail)
                self.apply(mail)
                write = self.unacknowledged = self.next_write()
                await store.append(claim, write)
                self.apply(write)
                self.unacknowledged = None
                acknowledged.put_nowait(None)

    async def check(self, store: RunStore) -> None:
        """Check that all acknowledged writes are stored, and all or nothing of the interrupted one."""
        stored = await store.load(self.run_id)
        unread = [mail.mail_id for mail in stored.mail]
        found = (list(stored.entries), stored.record.next_seq, stored.record.progress, unread)
        if self.unacknowledged is not None and (stored.record.next_seq, unread) != (self.next_seq, self.unread):
            self.apply(self.unacknowledged)
        self.unacknowledged = None
        assert found == (self.journal, self.next_seq, self.progress, self.unread)


class KilledCall(NamedTuple):
    """A call that a kill interrupts."""

    #: Create what the call needs for this run id.
    prepare: Callable[[StoreProcess, str], Awaitable[Claim]]
    make: Callable[[StoreProcess, Claim], Coroutine[Any, Any, None]]


async def _prepare_nothing(child: StoreProcess, run_id: str) -> Claim:
    worker = await add_process_worker(child, child.child.identity)
    return Claim(run_id=run_id, worker_id=worker, token=0, strikes=0)


async def _prepare_running(child: StoreProcess, run_id: str) -> Claim:
    worker = await add_process_worker(child, child.child.identity)
    claim = await create_claimed(child, worker, make_run(run_id, b"zero", b"one"))
    for name in ("used", "unread"):
        await child.post(run_id, make_mail(name, topic=name))
    return claim


async def _prepare_waiting(child: StoreProcess, run_id: str) -> Claim:
    worker = await add_process_worker(child, child.child.identity)
    return await create_waiting(child, worker, make_run(run_id, b"zero", b"one"), wake_on=["message"])


async def _prepare_queued(child: StoreProcess, run_id: str) -> Claim:
    claim = await _prepare_nothing(child, run_id)
    await child.create(make_run(run_id, b"zero", b"one"))
    return claim


async def _create(child: StoreProcess, claim: Claim) -> None:
    await child.create(make_run(claim.run_id, *_BODIES), worker_id=claim.worker_id)


async def _append(child: StoreProcess, claim: Claim) -> None:
    await child.append(claim, make_append(2, *_BODIES, progress=b"further", step_finished=True, consumed=["used"]))


async def _rewrite(child: StoreProcess, claim: Claim) -> None:
    await child.append(claim, make_append(2, *_BODIES, progress=b"further", rewrite=True))


async def _release(child: StoreProcess, claim: Claim) -> None:
    last = make_entries(2, *_BODIES)
    await child.release(
        claim, Release(status=RunStatus.DONE, reason="because", entries=last, progress=b"end", consumed=["used"])
    )


async def _post(child: StoreProcess, claim: Claim) -> None:
    await child.post(claim.run_id, make_mail(body=_BODIES[-1]))


async def _claim(child: StoreProcess, claim: Claim) -> None:
    await child.claim(claim.run_id, claim.worker_id)


async def _remove(child: StoreProcess, claim: Claim) -> None:
    await child.remove(claim.run_id, claim=claim)


_BODIES = (b"x" * 20, b"y" * 5_000, b"z" * 70_000)

CALLS = {
    "create": KilledCall(_prepare_nothing, _create),
    "append": KilledCall(_prepare_running, _append),
    "rewrite": KilledCall(_prepare_running, _rewrite),
    "release": KilledCall(_prepare_running, _release),
    "post": KilledCall(_prepare_waiting, _post),
    "claim": KilledCall(_prepare_queued, _claim),
    "remove": KilledCall(_prepare_running, _remove),
}


@pytest.mark.asyncio
class KillTests(DurableStoreUnderTest):
    async def test_a_kill_during_a_write_loses_no_acknowledged_write_and_leaves_none_half_written(
        self, store: RunStore, location: str
    ) -> None:
        writers = [_Writer(f"run-{n}") for n in range(WRITERS)]
        for writer in writers:
            await store.create(make_run(writer.run_id))
        interrupted = 0
        for _ in range(10 * KILLS):
            async with StoreProcess(self.factory, location) as child:
                await _kill_while_writing(child, writers)
                # A kill between two writes does not count.
                interrupted += bool(child.child.interrupted_calls)
            await self.wait_until_idle(location, child.child.identity)
            for writer in writers:
                await writer.check(store)
            if interrupted == KILLS:
                break
        assert interrupted == KILLS, "too few kills came in the middle of a write"
        async with self.open_store(location) as reopened:
            for writer in writers:
                await writer.check(reopened)

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    async def test_a_kill_during_a_call_leaves_its_whole_effect_or_none(
        self, store: RunStore, location: str, call: KilledCall
    ) -> None:
        interrupted = 0
        for n in range(20 * KILLS_PER_CALL):
            async with StoreProcess(self.factory, location) as child:
                run, twin = f"run-{n}", f"twin-{n}"
                claims = {name: await call.prepare(child, name) for name in (run, twin)}
                before, started = await _read_state(store, run), SYSTEM_CLOCK.monotonic()
                await call.make(child, claims[twin])
                duration, after = SYSTEM_CLOCK.monotonic() - started, await _read_state(store, twin)
                assert before != after, "the twin shows the effect of the call without a kill"
                # Half of the kills come at once, because many calls take less time than a kill.
                delay = 0 if n % 2 else duration * random.uniform(0.1, 0.9)
                await _kill_during(child, call.make(child, claims[run]), delay)
                interrupted += bool(child.child.interrupted_calls)
            await self.wait_until_idle(location, child.child.identity)
            assert await _read_state(store, run) in (before, after)
            if interrupted == KILLS_PER_CALL:
                break
        assert interrupted == KILLS_PER_CALL, "too few kills came in the middle of the call"


async def _kill_while_writing(child: StoreProcess, writers: list[_Writer]) -> None:
    """Let the process make some writes, then kill it at a random moment of a later one."""
    worker = await add_process_worker(child, child.child.identity)
    claims = [await child.claim(writer.run_id, worker) for writer in writers]
    acknowledged: asyncio.Queue[None] = asyncio.Queue()
    writing = [
        asyncio.ensure_future(writer.write_until_killed(child, claim, acknowledged))
        for writer, claim in zip(writers, claims, strict=True)
    ]
    moment = asyncio.ensure_future(_wait_for_random_write_moment(child, acknowledged))
    # A writer ends first only if the store raises an error.
    await asyncio.wait([moment, *writing], return_when=asyncio.FIRST_COMPLETED)
    moment.cancel()
    await child.child.kill()
    await asyncio.gather(*writing)


async def _kill_during(child: StoreProcess, call: Coroutine[Any, Any, None], after: float) -> None:
    call_task = asyncio.ensure_future(call)
    started_task = asyncio.ensure_future(child.child.wait_until_call_started())
    await asyncio.wait([call_task, started_task], return_when=asyncio.FIRST_COMPLETED)
    started_task.cancel()
    await asyncio.sleep(after)
    await child.child.kill()
    with contextlib.suppress(ProcessExited):
        await call_task


async def _read_state(store: RunStore, run_id: str) -> tuple[object, ...] | None:
    """Return the state of a run that a call changes, without the values that differ between runs."""
    try:
        stored = await store.load(run_id)
    except RunNotFound:
        return None
    record, mail = stored.record, [(each.mail_id, each.body) for each in stored.mail]
    claimed = (record.status, record.strikes, record.reason, record.cancel_requested, record.token > 0)
    return *claimed, record.progress, record.next_seq, record.size, *stored.entries, *mail, *record.wake_on


async def _wait_for_random_write_moment(child: StoreProcess, acknowledged: asyncio.Queue[None]) -> None:
    started, writes = SYSTEM_CLOCK.monotonic(), random.randint(5, 25)
    for _ in range(writes):
        await acknowledged.get()
    write_duration = (SYSTEM_CLOCK.monotonic() - started) / writes * WRITERS
    await child.child.wait_until_call_started()
    await asyncio.sleep(random.uniform(0, write_duration))


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
