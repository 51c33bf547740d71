"""Tests of several processes on one durable store: races, dead processes, a stopped process."""

import asyncio
import contextlib
import itertools
import os
from collections import Counter
from collections.abc import AsyncIterator

import msgspec
import pytest

from holdfast.checkpoint.errors import ClaimLost, RunBusy, RunExists, RunNotFound, UnreadMail
from holdfast.checkpoint.record import Release, RunFilter, RunStatus
from holdfast.checkpoint.store import RunStore
from holdfast.checkpoint.workers import Claim, ProcessIdentity, WorkerIdentity, this_process
from holdfast.ids import make_id
from holdfast.testing.store_processes.store_process import StoreProcess
from holdfast.testing.store_processes.store_under_test import (
    create_claimed,
    create_waiting,
    get_run_ids,
    list_run_ids,
    load_bodies,
    load_contents,
    load_record,
    make_append,
    make_mail,
    make_run,
    read_mail_ids,
)
from holdfast.testing.store_tests.append_tests import assert_consistent_loads
from holdfast.testing.store_tests.notice_tests import CHANGES, is_woken
from holdfast.testing.store_tests.reopen_tests import DurableStoreUnderTest

RACERS = 4


async def add_process_worker(store: RunStore, process: ProcessIdentity) -> str:
    """Register a new worker of that process. Return its id."""
    worker = WorkerIdentity(worker_id=f"worker-{make_id()}", process=process)
    await store.register_worker(worker)
    return worker.worker_id


@contextlib.asynccontextmanager
async def open_racers(factory: str, location: str) -> AsyncIterator[list[tuple[StoreProcess, str]]]:
    """Open stores at one location in several processes at once, each with a worker."""
    async with contextlib.AsyncExitStack() as stack:
        stores = [StoreProcess(factory, location) for _ in range(RACERS)]
        await asyncio.gather(*(stack.enter_async_context(store) for store in stores))
        yield [(store, await add_process_worker(store, store.child.identity)) for store in stores]


async def _consume_until_waiting(store: RunStore, claim: Claim, consumed: Counter[str]) -> None:
    """Consume the mail of the run until there is none, then let the run wait for more."""
    while True:
        stored = await store.load(claim.run_id)
        mail_ids = [mail.mail_id for mail in stored.mail]
        await store.append(claim, make_append(stored.record.next_seq, b"used", consumed=mail_ids))
        consumed.update(mail_ids)
        with contextlib.suppress(UnreadMail):
            await store.release(claim, Release(status=RunStatus.WAITING, wake_on=["message"]))
            stored = await store.load(claim.run_id)
            assert not (stored.mail and stored.record.status is RunStatus.WAITING), "no run waits for mail that it has"
            return


@pytest.mark.asyncio
class RaceTests(DurableStoreUnderTest):
    async def test_no_expiry_is_recorded_over_mail_that_was_accepted_before(self, location: str) -> None:
        async with open_racers(self.factory, location) as racing:
            (store, worker), (sender, _), *_ = racing
            for n in range(25):
                claim = await create_claimed(store, worker, make_run(f"run-{n}"))
                expiry = make_append(1, b"expired", unless_mail=["message"])
                refused, _ = await asyncio.gather(
                    store.append(claim, expiry), sender.post(claim.run_id, make_mail()), return_exceptions=True
                )
                assert refused is None or isinstance(refused, UnreadMail)
                assert await load_bodies(store, claim.run_id) == [b"begin", b"expired"][: 2 if refused is None else 1]
                late = make_append(2 if refused is None else 1, b"late", unless_mail=["message"])
                with pytest.raises(UnreadMail):
                    await store.append(claim, late)
                assert await read_mail_ids(store, claim.run_id) == ["mail-1"]

    async def test_of_many_processes_one_wins_each_claim(self, location: str) -> None:
        names = [f"run-{n}" for n in range(25)]
        async with open_racers(self.factory, location) as racing:
            for name in names:
                await racing[0][0].create(make_run(name))
            tries = [(store, name, worker) for name in names for store, worker in racing]
            results = await asyncio.gather(
                *(store.claim(name, worker) for store, name, worker in tries), return_exceptions=True
            )
            won = [result for result in results if isinstance(result, Claim)]
            lost = [result for result in results if not isinstance(result, Claim)]
            assert sorted(get_run_ids(won)) == sorted(names)
            assert {type(result) for result in lost} == {RunBusy}
            assert len({claim.token for claim in won}) == len(won)
            for claim in won:
                record = await load_record(racing[-1][0], claim.run_id)
                assert (record.owner, record.token, record.strikes) == (claim.worker_id, claim.token, 1)

    async def test_many_processes_claim_every_run_once(self, location: str) -> None:
        names = [f"run-{n}" for n in range(60)]

        async def drain(store: RunStore, worker: str) -> list[str]:
            run_ids: list[str] = []
            while claims := await store.claim_next(worker, agents=["agent"], limit=4):
                run_ids += get_run_ids(claims)
            return run_ids

        async with open_racers(self.factory, location) as racing:
            for n, name in enumerate(names):
                await racing[0][0].create(make_run(name, caller_id=f"caller-{n % 5}"))
            claimed = await asyncio.gather(*(drain(store, worker) for store, worker in racing))
        assert Counter(run_id for run_ids in claimed for run_id in run_ids) == Counter(names)

    async def test_of_many_processes_one_creates_an_id(self, location: str) -> None:
        async with open_racers(self.factory, location) as racing:
            results = await asyncio.gather(
                *(
                    store.create(make_run(f"run-{n}", worker.encode()), worker_id=worker)
                    for n in range(10)
                    for store, worker in racing
                ),
                return_exceptions=True,
            )
            won = [result for result in results if isinstance(result, Claim)]
            assert sorted(get_run_ids(won)) == sorted(f"run-{n}" for n in range(10))
            for claim in won:
                assert await load_bodies(racing[0][0], claim.run_id) == [claim.worker_id.encode()]

    async def test_mail_that_processes_post_while_others_wait_for_it_is_consumed_once(self, location: str) -> None:
        """It may come while its run is about to wait, waits, or is claimed. Two processes post each mail."""
        expected = [f"mail-{n}" for n in range(20)]
        consumed: Counter[str] = Counter()

        async def post(store: RunStore) -> list[str]:
            receipts = [await store.post("run-1", make_mail(mail_id)) for mail_id in expected]
            return [receipt.mail.mail_id for receipt in receipts if receipt.is_new]

        async def consume(store: RunStore, worker: str) -> None:
            while len(consumed) < len(expected):
                for claim in await store.claim_next(worker, agents=["agent"], limit=1):
                    await _consume_until_waiting(store, claim, consumed)

        async with open_racers(self.factory, location) as racing:
            store, worker = racing[0]
            await create_waiting(store, worker, wake_on=["message"])
            consuming = [asyncio.ensure_future(consume(*racer)) for racer in racing[2:]]
            async with asyncio.timeout(self.timeout.total_seconds()):
                posted = await asyncio.gather(*(post(store) for store, _ in racing[:2]))
                await asyncio.gather(*consuming)
            assert Counter(itertools.chain(*posted)) == consumed == Counter(expected)
            assert await read_mail_ids(store) == []
            assert (await load_record(store)).status is RunStatus.WAITING

    async def test_processes_that_create_and_remove_one_id_never_share_it(self, location: str) -> None:
        async def create_and_remove(store: RunStore, worker: str) -> list[int]:
            tokens: list[int] = []
            while len(tokens) < 10:
                try:
                    with contextlib.suppress(RunExists):
                        await store.create(make_run())
                    claim = await store.claim("run-1", worker)
                except (RunBusy, RunNotFound):
                    continue
                await store.append(claim, make_append(1, worker.encode()))
                assert await load_bodies(store) == [b"begin", worker.encode()]
                await store.remove("run-1", claim=claim)
                tokens.append(claim.token)
            return tokens

        async with open_racers(self.factory, location) as racing:
            tokens = await asyncio.gather(*(create_and_remove(store, worker) for store, worker in racing))
        assert all(own == sorted(own) for own in tokens), "the tokens of one process grow"
        assert len({token for own in tokens for token in own}) == 10 * RACERS, "no token is given twice"

    async def test_processes_write_to_their_runs_concurrently(self, location: str) -> None:
        async def write(store: RunStore, worker: str) -> Claim:
            claim = await create_claimed(store, worker, make_run(f"run-of-{worker}"))
            for seq in range(1, 21):
                await store.append(claim, make_append(seq, f"{worker} {seq}".encode() * 50, step_finished=True))
            return claim

        async with open_racers(self.factory, location) as racing:
            claims = await asyncio.gather(*(write(store, worker) for store, worker in racing))
            for claim in claims:
                expected = [b"begin", *(f"{claim.worker_id} {seq}".encode() * 50 for seq in range(1, 21))]
                assert await load_bodies(racing[0][0], claim.run_id) == expected

    async def test_a_load_while_another_process_writes_is_consistent(self, store: RunStore, location: str) -> None:
        async with StoreProcess(self.factory, location) as other:
            await assert_consistent_loads(other, store, await add_process_worker(other, other.child.identity))

    async def test_a_change_ends_the_wait_in_another_process(self, store: RunStore, location: str) -> None:
        async with StoreProcess(self.factory, location) as other:
            worker = await add_process_worker(store, this_process())
            assert await is_woken(other, store, worker, CHANGES["submitted"], self.timeout)


@pytest.mark.asyncio
class WorkerDeathTests(DurableStoreUnderTest):
    async def test_the_runs_of_a_killed_process_are_claimable_at_once(
        self, store: RunStore, worker: str, location: str
    ) -> None:
        async with StoreProcess(self.factory, location) as first, StoreProcess(self.factory, location) as alive:
            killed = await add_process_worker(first, first.child.identity)
            survivor = await add_process_worker(alive, alive.child.identity)
            for n in range(3):
                await create_claimed(first, killed, make_run(f"first-{n}"))
                await create_claimed(alive, survivor, make_run(f"alive-{n}"))
            assert await list_run_ids(store, RunFilter(interrupted=True)) == []
            await first.child.kill()
            names = [f"first-{n}" for n in range(3)]
            assert await list_run_ids(store, RunFilter(interrupted=True)) == names
            assert (await store.claim("first-0", worker)).strikes == 2
            assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=10)) == names[1:]
            for n in range(3):
                with pytest.raises(RunBusy):
                    await store.claim(f"alive-{n}", worker)
                with pytest.raises(RunBusy):
                    await store.remove(f"alive-{n}")
                assert (await load_record(store, f"alive-{n}")).owner_alive

    async def test_the_runs_of_an_exited_process_are_claimable(
        self, store: RunStore, worker: str, location: str
    ) -> None:
        async with StoreProcess(self.factory, location) as other:
            await create_claimed(other, await add_process_worker(other, other.child.identity))
            await other.close()
            assert (await load_record(store)).is_interrupted
            assert (await store.claim("run-1", worker)).strikes == 2

    async def test_a_recycled_pid_is_another_process(self, store: RunStore, worker: str) -> None:
        this = this_process()
        assert this.pid == os.getpid()
        earlier = await add_process_worker(store, msgspec.structs.replace(this, started=f"{this.started}0"))
        await create_claimed(store, earlier)
        record = await load_record(store)
        assert (record.owner, record.owner_alive, record.is_interrupted) == (earlier, False, True)
        assert (await store.claim("run-1", worker)).worker_id == worker

    async def test_a_worker_on_another_host_is_not_dead_at_once(self, store: RunStore, worker: str) -> None:
        elsewhere = await add_process_worker(store, ProcessIdentity(host="elsewhere", pid=1, started="then"))
        await create_claimed(store, elsewhere)
        assert (await load_record(store)).owner_alive
        with pytest.raises(RunBusy):
            await store.claim("run-1", worker)
        assert get_run_ids(await store.claim_next(worker, agents=["agent"], limit=1)) == []

    async def test_a_stopped_process_writes_nothing_after_its_run_was_stolen(
        self, store: RunStore, worker: str, location: str
    ) -> None:
        async with StoreProcess(self.factory, location) as stopped:
            old = await create_claimed(stopped, await add_process_worker(stopped, stopped.child.identity))
            await stopped.append(old, make_append(1, b"before"))
            await stopped.child.pause()
            with pytest.raises(RunBusy):
                await store.claim("run-1", worker)  # a stopped process is not dead
            late = [
                asyncio.ensure_future(call)
                for call in (
                    stopped.append(old, make_append(2, b"late", progress=b"late")),
                    stopped.append(old, make_append(2, b"late", rewrite=True)),
                    stopped.release(old, Release(status=RunStatus.DONE)),
                    stopped.remove("run-1", claim=old),
                )
            ]
            new = await store.claim("run-1", worker, steal=True)
            await store.append(new, make_append(2, b"by the new owner"))
            before = await load_contents(store)
            stopped.child.unpause()
            results = await asyncio.gather(*late, return_exceptions=True)
            assert [type(result) for result in results] == [ClaimLost] * len(late)
            assert await load_contents(store) == before
            await store.append(new, make_append(3, b"more"))
            assert await load_bodies(stopped) == [b"begin", b"before", b"by the new owner", b"more"]
