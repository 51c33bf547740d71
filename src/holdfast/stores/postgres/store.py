"""The PostgreSQL store: one database, any number of hosts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from holdfast.checkpoint.claim import Claim, WorkerIdentity, backoff
from holdfast.checkpoint.errors import RunNotFound, StoreClosed, StoreError
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    TERMINAL_STATUSES,
    NewRun,
    Release,
    RunFilter,
    RunRecord,
    RunStatus,
    StoredRun,
)
from holdfast.checkpoint.store import Durability, StoreHealth
from holdfast.stores.postgres.connection import escape_text, unescape_text
from holdfast.stores.postgres.database import Database, ReaderPool, SqlFiles, check_health, prepare_schema
from holdfast.stores.postgres.gc import GarbageCollector
from holdfast.stores.postgres.heartbeat import Heartbeat
from holdfast.stores.postgres.notify import ChangeNotifier
from holdfast.stores.postgres.queries import Queries
from holdfast.stores.postgres.requests import AppendRequest, Command, Response, measure_entries, raise_refusal
from holdfast.stores.postgres.writer import Writer

#: Larger than any `seq`: a load after it reads the record alone.
_PAST_EVERY_ENTRY = 2**62

#: Runs that are taken in one transaction, which holds up the saves beside it.
_MAX_CLAIM_BATCH = 100
#: How long `open` waits to hear its own notification, and `close` for a server that does not answer.
_LISTEN_TIMEOUT, _CLOSE_TIMEOUT_S = timedelta(seconds=3), 5.0
#: Nothing is put off or kept longer than this: PostgreSQL knows later dates, Python does not.
_MAX_INTERVAL_S = timedelta(days=365 * 1000).total_seconds()
#: By strikes, in seconds; the last holds for more.
_BACKOFF_S = [backoff(strikes).total_seconds() for strikes in range(16)]


@dataclass(frozen=True, slots=True)
class _Components:
    """What an open store works with."""

    readers: ReaderPool
    queries: Queries
    writer: Writer
    heartbeat: Heartbeat
    notifier: ChangeNotifier
    garbage_collector: GarbageCollector


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
        lease_timeout: timedelta = timedelta(seconds=30),
        timeout: timedelta = timedelta(seconds=30),
        readers: int = 3,
        listen_url: str | None = None,
        poll_interval: timedelta = timedelta(seconds=1),
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
            self._sql = SqlFiles(schema)
        except ValueError as exc:
            raise StoreError(str(exc)) from exc
        self._database = Database(url, self._sql, timeout)
        self._listen_database = Database(listen_url or url, self._sql, timeout)
        self._durability, self._lease_timeout, self._poll_interval = durability, lease_timeout, poll_interval
        self._readers = readers
        self._components: _Components | None = None
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        async with self._lock:
            if self._components is not None:
                return
            await prepare_schema(self._database)
            readers = ReaderPool(self._database, self._readers)
            questions = Queries(readers, self._sql)
            try:
                await questions.delete_stale_rows()
            except BaseException:
                await readers.close()
                raise
            self._components = _Components(
                readers=readers,
                queries=questions,
                writer=Writer(self._database, durable=self._durability == "full"),
                heartbeat=Heartbeat(self._database, self._lease_timeout),
                notifier=ChangeNotifier(self._listen_database, readers, poll_interval=self._poll_interval),
                garbage_collector=GarbageCollector(readers, self._sql),
            )
            self._components.garbage_collector.wake()
            await self._components.notifier.start(_LISTEN_TIMEOUT)

    async def close(self) -> None:
        async with self._lock:
            parts, self._components = self._components, None
            if parts is None:
                return
            await parts.writer.close()
            await parts.heartbeat.stop()
            # Other hosts need not wait for the silence of workers that are known to be gone.
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                    await parts.queries.deregister_workers(parts.heartbeat.worker_ids)
            await parts.garbage_collector.close()
            await parts.notifier.close()
            await parts.readers.close()

    # -- workers ------------------------------------------------------------------------------------------------

    async def register_worker(self, worker: WorkerIdentity) -> None:
        parts = self._require_open()
        await parts.queries.register_worker(worker, self._lease_timeout.total_seconds())
        parts.heartbeat.add(worker)

    async def deregister_worker(self, worker_id: str) -> None:
        parts = self._require_open()
        await parts.heartbeat.remove(worker_id)
        await parts.queries.deregister_workers([worker_id])

    # -- one run ------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None) -> Claim | None:
        size = measure_entries(run.run_id, run.entries, first_seq=0)
        answer = await self._execute(
            Command(
                "create",
                run.run_id,
                entries=run.entries,
                size=size,
                parameters={
                    "agent_name": escape_text(run.agent_name),
                    "caller_id": escape_text(run.caller_id),
                    "parent_run_id": None if run.parent_run_id is None else escape_text(run.parent_run_id),
                    "worker_id": None if worker_id is None else escape_text(worker_id),
                    "wait": 0 if worker_id is None else _BACKOFF_S[1],
                    "meta": run.meta,
                    "progress": run.progress,
                },
            )
        )
        return None if worker_id is None else _make_claim(run.run_id, worker_id, answer)

    async def append(self, claim: Claim, write: Append) -> None:
        parts, run_id = self._require_open(), claim.run_id
        operation = AppendRequest(run_id, claim.token, write, measure_entries(run_id, write.entries))
        refusal = await parts.writer.submit(operation)
        if refusal is not None:
            raise_refusal(operation, refusal)
        if write.rewrite:
            parts.garbage_collector.wake()

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await self._require_open().queries.load(run_id, after)
        if stored is None:
            raise RunNotFound(run_id)
        return stored

    async def get_record(self, run_id: str) -> RunRecord:
        return (await self.load(run_id, after=_PAST_EVERY_ENTRY)).record

    async def release(self, claim: Claim, release: Release) -> None:
        size = measure_entries(claim.run_id, release.entries)
        await self._execute(
            Command(
                "settle",
                claim.run_id,
                token=claim.token,
                entries=release.entries,
                size=size,
                parameters={
                    "status": release.status.value,
                    "reason": escape_text(release.reason),
                    "strikes": release.strikes,
                    "delay": min(release.delay.total_seconds(), _MAX_INTERVAL_S),
                    "keep": None
                    if release.retention is None
                    else min(release.retention.total_seconds(), _MAX_INTERVAL_S),
                    "progress": release.progress,
                },
            )
        )

    async def remove(self, run_id: str, *, claim: Claim | None = None) -> None:
        about = {} if claim is not None else await self._liveness_context()
        token = None if claim is None else claim.token
        await self._execute(Command("remove", run_id, about, token=token))
        self._require_open().garbage_collector.wake()

    # -- finding and claiming -----------------------------------------------------------------------------------

    async def list_runs(self, filter: RunFilter | None = None) -> AsyncIterator[RunRecord]:
        async for record in self._require_open().queries.list_runs(filter or RunFilter()):
            yield record
            self._require_open()

    async def claim(
        self, run_id: str, worker_id: str, *, statuses: Collection[RunStatus] = CLAIMABLE_STATUSES, steal: bool = False
    ) -> Claim:
        about = {
            "worker_id": escape_text(worker_id),
            "statuses": [status.value for status in statuses],
            "steal": steal,
            "backoff": _BACKOFF_S,
        } | await self._liveness_context()
        if not TERMINAL_STATUSES.isdisjoint(statuses):
            # Not for the server: for giving it back, should the answer be lost.
            about["keep"] = await self._require_open().queries.expires_in(run_id)
        return _make_claim(run_id, worker_id, await self._execute(Command("claim", run_id, about)))

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        questions, around = self._require_open().queries, await self._liveness_context()
        claims: list[Claim] = []
        tried: list[int] = []
        while agents and len(claims) < limit:
            # Looked for beside the writer, whom that would hold up; taken by it, so that a lost answer loses no run.
            wanted = min(limit - len(claims), _MAX_CLAIM_BATCH)
            found = await questions.find_candidates(tuple(agents), wanted, around["dead"], exclude=tried)
            if not found:
                break
            about = {"worker_id": escape_text(worker_id), "ids": found, "limit": wanted, "backoff": _BACKOFF_S} | around
            answer = await self._execute(Command("take", None, about))
            assert answer is not None
            claims += [_make_claim(unescape_text(taken["run_id"]), worker_id, taken) for taken in answer["taken"]]
            tried += found
        return tuple(claims)

    # -- signals between processes ------------------------------------------------------------------------------

    async def request_cancel(self, run_id: str) -> None:
        await self._execute(Command("cancel", run_id, {}))

    async def pending_cancellations(self, worker_id: str) -> Sequence[str]:
        return tuple(await self._require_open().queries.pending_cancellations(worker_id))

    async def wait_for_change(self, timeout: timedelta) -> bool:
        return await self._require_open().notifier.wait_for_change(timeout)

    @property
    def is_listening(self) -> bool:
        """Whether `changed` is woken by other processes. Else it looks after a short while, as behind a pooler."""
        return self._require_open().notifier.is_listening

    async def purge(self, *, limit: int = 100) -> int:
        answer = await self._execute(Command("purge", None, {"limit": limit}))
        self._require_open().garbage_collector.wake()
        assert answer is not None
        purged: int = answer["purged"]
        return purged

    async def check_health(self) -> StoreHealth:
        assert self._require_open()
        return await check_health(self._database)

    # -- within -------------------------------------------------------------------------------------------------

    def _require_open(self) -> _Components:
        if self._components is None:
            raise StoreClosed("this PostgreSQL store is not open: call open() first, and nothing after close()")
        return self._components

    async def _execute(self, command: Command) -> Response | None:
        parts = self._require_open()
        answer = await parts.writer.submit(command)
        if answer is not None and "error" in answer:
            raise_refusal(command, answer)
        if not parts.notifier.is_listening:
            parts.notifier.notify_all()  # what this very process did it need not look for
        return answer

    async def _liveness_context(self) -> dict[str, Any]:
        """What the server has to know to tell who is alive: this host, and which of its workers are dead."""
        questions = self._require_open().queries
        return {"here": questions.host, "dead": await questions.dead_local_workers()}


def _make_claim(run_id: str, worker_id: str, response: Response | None) -> Claim:
    assert response is not None
    return Claim(run_id=run_id, worker_id=worker_id, token=response["token"], strikes=response["strikes"])
