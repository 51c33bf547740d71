"""The PostgreSQL store: one database, any number of hosts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from holdfast.checkpoint.claim import Claim, Worker, backoff
from holdfast.checkpoint.durability import Durability
from holdfast.checkpoint.errors import RunNotFound, StoreClosed, StoreError
from holdfast.checkpoint.inspection import Inspection
from holdfast.checkpoint.journal import Write
from holdfast.checkpoint.lifecycle import CLAIMABLE, OVER, Status
from holdfast.checkpoint.record import Ending, NewRun, RunFilter, RunRecord, StoredRun
from holdfast.checkpoint.stores.postgres.database import Database, Readers
from holdfast.checkpoint.stores.postgres.heartbeat import Heartbeat
from holdfast.checkpoint.stores.postgres.inspection import inspect
from holdfast.checkpoint.stores.postgres.operations import Answer, Append, Other
from holdfast.checkpoint.stores.postgres.reading import Questions
from holdfast.checkpoint.stores.postgres.refusals import checked_size, refuse
from holdfast.checkpoint.stores.postgres.schema import prepare
from holdfast.checkpoint.stores.postgres.scripts import Scripts
from holdfast.checkpoint.stores.postgres.signs import Signs
from holdfast.checkpoint.stores.postgres.sweeper import Sweeper
from holdfast.checkpoint.stores.postgres.text import from_text, to_text
from holdfast.checkpoint.stores.postgres.writer import Writer

#: Runs that are taken in one transaction, which holds up the saves beside it.
_AT_ONCE = 100
#: How long `open` waits to hear its own notification, and `close` for a server that does not answer.
_HEARING, _PARTING = timedelta(seconds=3), 5.0
#: Nothing is put off or kept longer than this: PostgreSQL knows later dates, Python does not.
_LONGEST = timedelta(days=365 * 1000).total_seconds()
#: By strikes, in seconds; the last holds for more.
_BACKOFF = [backoff(strikes).total_seconds() for strikes in range(16)]


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an open store works with."""

    readers: Readers
    questions: Questions
    writer: Writer
    heartbeat: Heartbeat
    signs: Signs
    sweeper: Sweeper


class PostgresStore:
    """Keeps runs in a PostgreSQL database, in a schema of its own.

    Belongs to one event loop. Uses up to six connections: one to write, a few to read, one for the heartbeat and one to
    listen. No transaction of it ever waits for its client, and none needs a session, so it works behind a transaction
    pooler.
    """

    durable = True

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "full",
        schema: str = "holdfast",
        dead_after: timedelta = timedelta(seconds=30),
        patience: timedelta = timedelta(seconds=30),
        readers: int = 3,
        listen_url: str | None = None,
        poll: timedelta = timedelta(seconds=1),
    ) -> None:
        """
        Args:
            url: as libpq takes it, `postgresql://user:password@host:port/database?sslmode=...`.
            durability: `process` does not wait for the server's disk: a crash of the server may lose the last moment.
            schema: where the tables are. Created if the user may.
            dead_after: other hosts take a worker of this store for dead when it was not heard from for so long.
            patience: how long a call waits for a server that does not answer before it raises `StoreUnavailable`.
            readers: how many connections there may be beside the writer's.
            listen_url: where to listen for changes when `url` leads to a transaction pooler.
            poll: how often to look for changes where listening does not work.

        Raises:
            StoreError: the URL or the schema's name cannot be used.
        """
        try:
            self._scripts = Scripts(schema)
        except ValueError as exc:
            raise StoreError(str(exc)) from exc
        self._database = Database(url, self._scripts, patience)
        self._listening = Database(listen_url or url, self._scripts, patience)
        self._durability, self._dead_after, self._poll = durability, dead_after, poll
        self._readers = readers
        self._parts: _Parts | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        async with self._lock:
            if self._parts is not None:
                return
            await prepare(self._database)
            readers = Readers(self._database, self._readers)
            questions = Questions(readers, self._scripts)
            try:
                await questions.tidy()
            except BaseException:
                await readers.close()
                raise
            self._parts = _Parts(
                readers=readers,
                questions=questions,
                writer=Writer(self._database, durable=self._durability == "full"),
                heartbeat=Heartbeat(self._database, self._dead_after),
                signs=Signs(self._listening, readers, poll=self._poll),
                sweeper=Sweeper(readers, self._scripts),
            )
            self._parts.sweeper.wake()
            await self._parts.signs.start(_HEARING)

    async def close(self) -> None:
        async with self._lock:
            parts, self._parts = self._parts, None
            if parts is None:
                return
            await parts.writer.close()
            await parts.heartbeat.stop()
            # Other hosts need not wait for the silence of workers that are known to be gone.
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_PARTING):
                    await parts.questions.discharge(parts.heartbeat.worker_ids)
            await parts.sweeper.close()
            await parts.signs.close()
            await parts.readers.close()

    # -- workers ------------------------------------------------------------------------------------------------

    async def enlist(self, worker: Worker) -> None:
        parts = self._opened()
        await parts.questions.enlist(worker, self._dead_after.total_seconds())
        parts.heartbeat.add(worker)

    async def discharge(self, worker_id: str) -> None:
        parts = self._opened()
        await parts.heartbeat.drop(worker_id)
        await parts.questions.discharge([worker_id])

    # -- one run ------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        size = checked_size(run.run_id, run.entries, first=0)
        answer = await self._commit(
            Other(
                "create",
                run.run_id,
                entries=run.entries,
                size=size,
                about={
                    "agent_name": to_text(run.agent_name),
                    "caller_id": to_text(run.caller_id),
                    "parent_run_id": None if run.parent_run_id is None else to_text(run.parent_run_id),
                    "worker_id": None if worker_id is None else to_text(worker_id),
                    "wait": 0 if worker_id is None else _BACKOFF[1],
                    "meta": run.meta,
                    "progress": run.progress,
                },
            )
        )
        return None if worker_id is None else _claim(run.run_id, worker_id, answer)

    async def append(self, claim: Claim, write: Write) -> None:
        parts, run_id = self._opened(), claim.run_id
        operation = Append(run_id, claim.token, write, checked_size(run_id, write.entries))
        refusal = await parts.writer.commit(operation)
        if refusal is not None:
            refuse(operation, refusal)
        if write.replace:
            parts.sweeper.wake()

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await self._opened().questions.load(run_id, after)
        if stored is None:
            raise RunNotFound(run_id)
        return stored

    async def settle(self, claim: Claim, ending: Ending) -> None:
        size = checked_size(claim.run_id, ending.entries)
        await self._commit(
            Other(
                "settle",
                claim.run_id,
                token=claim.token,
                entries=ending.entries,
                size=size,
                about={
                    "status": ending.status.value,
                    "reason": to_text(ending.reason),
                    "strikes": ending.strikes,
                    "delay": min(ending.delay.total_seconds(), _LONGEST),
                    "keep": None if ending.keep is None else min(ending.keep.total_seconds(), _LONGEST),
                    "progress": ending.progress,
                },
            )
        )

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        about = {} if claim is not None else await self._around()
        token = None if claim is None else claim.token
        await self._commit(Other("remove", run_id, about, token=token))
        self._opened().sweeper.wake()

    # -- finding and claiming -----------------------------------------------------------------------------------

    async def records(self, wanted: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        async for record in self._opened().questions.records(wanted or RunFilter()):
            yield record
            self._opened()

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[Status] = CLAIMABLE, steal: bool = False
    ) -> Claim:
        about = {
            "worker_id": to_text(worker_id),
            "statuses": [status.value for status in statuses],
            "steal": steal,
            "backoff": _BACKOFF,
        } | await self._around()
        if not OVER.isdisjoint(statuses):
            # Not for the server: for giving it back, should the answer be lost.
            about["keep"] = await self._opened().questions.expires_in(run_id)
        return _claim(run_id, worker_id, await self._commit(Other("claim", run_id, about)))

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        questions, around = self._opened().questions, await self._around()
        claims: list[Claim] = []
        tried: list[int] = []
        while agents and len(claims) < limit:
            # Looked for beside the writer, whom that would hold up; taken by it, so that a lost answer loses no run.
            wanted = min(limit - len(claims), _AT_ONCE)
            found = await questions.candidates(tuple(agents), wanted, around["dead"], but_not=tried)
            if not found:
                break
            about = {"worker_id": to_text(worker_id), "ids": found, "limit": wanted, "backoff": _BACKOFF} | around
            answer = await self._commit(Other("take", None, about))
            assert answer is not None
            claims += [_claim(from_text(taken["run_id"]), worker_id, taken) for taken in answer["taken"]]
            tried += found
        return tuple(claims)

    # -- signals between processes ------------------------------------------------------------------------------

    async def request_cancel(self, run_id: str) -> None:
        await self._commit(Other("cancel", run_id, {}))

    async def cancels(self, worker_id: str) -> Sequence[str]:
        return tuple(await self._opened().questions.cancels(worker_id))

    async def changed(self, within: timedelta) -> bool:
        return await self._opened().signs.wait(within)

    @property
    def hears_of_changes(self) -> bool:
        """Whether `changed` is woken by other processes. Else it looks after a short while, as behind a pooler."""
        return self._opened().signs.hears

    async def purge(self, *, limit: int = 100) -> int:
        answer = await self._commit(Other("purge", None, {"limit": limit}))
        self._opened().sweeper.wake()
        assert answer is not None
        purged: int = answer["purged"]
        return purged

    async def inspect(self) -> Inspection:
        assert self._opened()
        return await inspect(self._database)

    # -- within -------------------------------------------------------------------------------------------------

    def _opened(self) -> _Parts:
        if self._parts is None:
            raise StoreClosed("this PostgreSQL store is not open: call open() first, and nothing after close()")
        return self._parts

    async def _commit(self, operation: Other) -> Answer | None:
        parts = self._opened()
        answer = await parts.writer.commit(operation)
        if answer is not None and "error" in answer:
            refuse(operation, answer)
        if not parts.signs.hears:
            parts.signs.give()  # what this very process did it need not look for
        return answer

    async def _around(self) -> dict[str, Any]:
        """What the server has to know to tell who is alive: this host, and which of its workers are dead."""
        questions = self._opened().questions
        return {"here": questions.here, "dead": await questions.dead_here()}


def _claim(run_id: str, worker_id: str, answer: Answer | None) -> Claim:
    assert answer is not None
    return Claim(run_id=run_id, worker_id=worker_id, token=answer["token"], strikes=answer["strikes"])
