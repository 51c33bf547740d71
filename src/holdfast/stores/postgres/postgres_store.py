"""The PostgreSQL store: one database, any number of hosts."""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.checkpoint.errors import RunExists, RunNotFound, StoreClosed, StoreError, StorePermissionError
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    TERMINAL_STATUSES,
    Mail,
    NewRun,
    Notice,
    Pending,
    Receipt,
    Release,
    RunFilter,
    RunPage,
    RunStatus,
    StoredRun,
)
from holdfast.checkpoint.store import Durability, StoreHealth
from holdfast.checkpoint.workers import Claim, Fleet, LimitUsage, WorkerHeartbeat, WorkerIdentity, backoff
from holdfast.config import LimitKind
from holdfast.core.ports import Transactions
from holdfast.db.postgres_tables import PostgresTables
from holdfast.db.postgres_url import parse_schema
from holdfast.db.tables import Tables
from holdfast.stores.postgres.database import Database, ReaderPool, SqlFiles, escape_text, unescape_text
from holdfast.stores.postgres.drafts import Drafts
from holdfast.stores.postgres.gc import GarbageCollector
from holdfast.stores.postgres.heartbeat import Heartbeat
from holdfast.stores.postgres.notify import ChangeNotifier
from holdfast.stores.postgres.queries import Queries
from holdfast.stores.postgres.records import make_receipt
from holdfast.stores.postgres.schema import check_health, prepare_schema, read_schema_version
from holdfast.stores.postgres.user_transaction import UserTransactions, queue_run, retry_while_locked
from holdfast.stores.postgres.write_requests import AppendRequest, Command, Response, measure_entries, raise_refusal
from holdfast.stores.postgres.writer import Writer

#: Runs claimed in one transaction, which delays the saves in it.
_MAX_CLAIM_BATCH = 100
#: How long `open` waits for its own notification. Behind a pooler none comes, and every `open` takes that long.
_LISTEN_TIMEOUT = timedelta(milliseconds=250)
#: The longest delay or retention: PostgreSQL knows later dates than Python.
_MAX_INTERVAL_S = timedelta(days=365 * 1000).total_seconds()
#: Seconds to wait by the number of failed attempts; the last one holds for all further attempts.
_BACKOFF_S = [backoff(strikes).total_seconds() for strikes in range(16)]


@dataclass(frozen=True, slots=True)
class _Components:
    """The parts of an open store."""

    readers: ReaderPool
    queries: Queries
    writer: Writer
    heartbeat: Heartbeat
    notifier: ChangeNotifier
    garbage_collector: GarbageCollector
    drafts: Drafts
    transactions: UserTransactions


class PostgresStore:
    """Keeps runs in a PostgreSQL database, in a schema of its own.

    Belongs to one event loop. Uses up to six connections: one to write, a few to read, one for the heartbeat and one to
    listen. Every transaction is one statement without session state, so it works behind a transaction pooler.
    """

    durable = True
    transactions: Transactions = "any"

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "full",
        schema: str | None = None,
        lease_timeout: timedelta = timedelta(seconds=30),
        timeout: timedelta = timedelta(seconds=30),
        readers: int = 3,
        listen_url: str | None = None,
        poll_interval: timedelta = timedelta(seconds=1),
    ) -> None:
        """
        Args:
            url: as libpq takes it, `postgresql://user:password@host:port/database?sslmode=...`, and `schema=NAME`
                among its options.
            durability: `process` does not wait for the server's disk: a crash of the server may lose the last commits.
            schema: where the tables are, by default the schema in the URL, else `holdfast`. Created if the user may.
            lease_timeout: other hosts count a worker of this store as dead after this time without a heartbeat.
            timeout: how long a call waits for a server that does not answer before it raises `StoreUnavailable`.
            readers: the number of connections to read with.
            listen_url: where to listen for changes when `url` leads to a transaction pooler.
            poll_interval: how often to look for changes where listening does not work.

        Raises:
            StoreError: the URL or the schema's name cannot be used.
        """
        try:
            self._sql = SqlFiles(parse_schema(url) if schema is None else schema)
        except ValueError as exc:
            raise StoreError(str(exc)) from exc
        self._database = Database(url, self._sql, timeout)
        self._tables = PostgresTables(url, schema=schema, timeout=timeout)
        self._listen_database = Database(listen_url or url, self._sql, timeout)
        self._durability, self._lease_timeout, self._poll_interval = durability, lease_timeout, poll_interval
        self._readers = readers
        self._components: _Components | None = None
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        if self._loop is not None and self._loop.is_closed():
            # Nothing of an event loop that was closed while the store was open works in another one.
            self._components, self._lock = None, asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        async with self._lock:
            if self._components is not None:
                return
            await prepare_schema(self._database)
            readers = ReaderPool(self._database, self._readers)
            queries = Queries(readers, self._sql)
            try:
                with contextlib.suppress(StorePermissionError):  # a role that only reads leaves them to others
                    await queries.delete_stale_rows()
            except BaseException:
                readers.close()
                raise
            self._components = _Components(
                readers=readers,
                queries=queries,
                writer=Writer(self._database, durable=self._durability == "full"),
                heartbeat=Heartbeat(self._database, self._lease_timeout),
                notifier=ChangeNotifier(self._listen_database, readers, poll_interval=self._poll_interval),
                garbage_collector=GarbageCollector(readers, self._sql),
                drafts=Drafts(readers, self._sql),
                transactions=UserTransactions(self._database, readers, durable=self._durability == "full"),
            )
            self._components.garbage_collector.wake()
            await self._components.notifier.start(_LISTEN_TIMEOUT)

    async def close(self) -> None:
        async with self._lock:
            parts, self._components = self._components, None
            if parts is not None:
                await self._close_components(parts)
        await self._tables.close()

    async def _close_components(self, parts: _Components) -> None:
        await parts.writer.close()
        await parts.heartbeat.stop()
        await parts.garbage_collector.close()
        await parts.notifier.close()
        parts.readers.close()

    def tables(self) -> Tables:
        return self._tables

    # -- workers ------------------------------------------------------------------------------------------------

    async def register_worker(self, worker: WorkerIdentity) -> None:
        parts = self._require_open()
        await parts.queries.register_worker(worker, self._lease_timeout)
        parts.heartbeat.add(worker)

    async def deregister_worker(self, worker_id: str) -> None:
        parts = self._require_open()
        await parts.heartbeat.leave(worker_id)
        await parts.queries.deregister_workers([worker_id])
        parts.heartbeat.left([worker_id])

    async def list_workers(self) -> Sequence[WorkerHeartbeat]:
        return await self._require_open().queries.list_workers()

    async def read_fleet(self) -> Fleet:
        return await self._require_open().queries.read_fleet()

    # -- one run ------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        if connection is not None:
            begin = await queue_run(connection, _make_create_command(run, None), self._sql)
            if begin is not None:
                raise RunExists(run.run_id, begin=begin)
            return None
        make_command = partial(_make_create_command, run, worker_id)
        response = await retry_while_locked(self._execute, make_command, self._database.timeout_s)
        # Without a token it was queued: a limit is reached.
        return _make_claim(run.run_id, worker_id, response) if worker_id and "token" in response else None

    async def append(self, claim: Claim, write: Append) -> None:
        parts, run_id = self._require_open(), claim.run_id
        request = AppendRequest(run_id, claim.token, write, measure_entries(run_id, write.entries))
        refusal = await parts.writer.submit(request)
        if refusal is not None:
            raise_refusal(request, refusal)
        if write.rewrite:
            parts.garbage_collector.wake()

    async def transact(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> Any:
        return await self._require_open().transactions.transact(claim, function, make_write)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        stored = await self._require_open().queries.load(run_id, after)
        if stored is None:
            raise RunNotFound(run_id)
        return stored

    async def release(self, claim: Claim, release: Release) -> None:
        await self._execute(
            Command(
                "settle",
                claim.run_id,
                token=claim.token,
                entries=release.entries,
                size=measure_entries(claim.run_id, release.entries),
                consumed=release.consumed,
                parameters={
                    "status": release.status.value,
                    "reason": escape_text(release.reason),
                    "strikes": release.strikes,
                    "delay": min(release.delay.total_seconds(), _MAX_INTERVAL_S),
                    "keep": None
                    if release.retention is None
                    else min(release.retention.total_seconds(), _MAX_INTERVAL_S),
                    "progress": release.progress,
                    "yields_to_cancel": release.yields_to_cancel,
                    "wake_at": None if release.wake_at is None else release.wake_at.isoformat(),
                    "wake_on": [escape_text(topic) for topic in release.wake_on],
                    **_encode_notice(release.notify),
                },
            )
        )

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        about = {} if claim is not None else await self._liveness_context()
        token = None if claim is None else claim.token
        await self._execute(Command("remove", run_id, about, token=token))
        garbage_collector = self._require_open().garbage_collector
        garbage_collector.wake()
        if erase:
            await garbage_collector.sweep_all()

    # -- finding and claiming -----------------------------------------------------------------------------------

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        queries = self._require_open().queries
        return await queries.list_page(filter or RunFilter(), limit, cursor, oldest_first=oldest_first)

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        about = {
            "worker_id": escape_text(worker_id),
            "statuses": [status.value for status in statuses],
            "steal": steal,
            "within_limits": within_limits,
            "backoff": _BACKOFF_S,
        } | await self._liveness_context()
        if not TERMINAL_STATUSES.isdisjoint(statuses):
            # For `LateCommits`, which restores it if the response is lost.
            about["keep"] = await self._require_open().queries.expires_in(run_id)
        return _make_claim(run_id, worker_id, await self._execute(Command("claim", run_id, about)))

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        queries, around = self._require_open().queries, await self._liveness_context()
        claims: list[Claim] = []
        tried: list[int] = []
        while agents and len(claims) < limit:
            # A reader finds candidates, to spare the writer. The writer claims them, so a lost response loses no run.
            wanted = min(limit - len(claims), _MAX_CLAIM_BATCH)
            found = await queries.find_candidates(tuple(agents), wanted, around["dead"], exclude=tried)
            if not found:
                break
            about = {"worker_id": escape_text(worker_id), "ids": found, "limit": wanted, "backoff": _BACKOFF_S} | around
            response = await self._execute(Command("take", None, about))
            claims += [_make_claim(unescape_text(taken["run_id"]), worker_id, taken) for taken in response["taken"]]
            tried += found
        return tuple(claims)

    # -- concurrency limits -------------------------------------------------------------------------------------

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        return await self._require_open().queries.set_limit(kind, name, max_runs, default=default)

    async def list_limits(self) -> Sequence[LimitUsage]:
        return await self._require_open().queries.list_limits()

    # -- mail ---------------------------------------------------------------------------------------------------

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        return make_receipt(mail, await self._execute(Command("post", run_id, _encode_mail(mail))))

    # -- signals between processes ------------------------------------------------------------------------------

    async def request_cancel(self, run_id: str) -> None:
        await self._execute(Command("cancel", run_id, {}))

    async def pending(self, worker_id: str) -> Pending:
        return await self._require_open().queries.pending(worker_id)

    async def wait_for_change(self, timeout: timedelta) -> bool:
        return await self._require_open().notifier.wait_for_change(timeout)

    @property
    def is_listening(self) -> bool:
        """Whether other processes wake `wait_for_change`. Otherwise, as behind a pooler, it polls."""
        return self._require_open().notifier.is_listening

    # -- drafts -------------------------------------------------------------------------------------------------

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        await self._require_open().drafts.put(claim, draft)

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        drafts = self._require_open().drafts
        if keep_for:
            await drafts.request(run_id, keep_for)
        return await drafts.read(run_id)

    async def purge(self, *, limit: int = 100) -> int:
        response = await self._execute(Command("purge", None, {"limit": limit}))
        self._require_open().garbage_collector.wake()
        purged: int = response["purged"]
        return purged

    async def check_health(self, *, quick: bool = False) -> StoreHealth:
        if quick:
            return await read_schema_version(self._database)
        self._require_open()
        return await check_health(self._database)

    # -- internal -------------------------------------------------------------------------------------------------

    def _require_open(self) -> _Components:
        if self._components is None:
            raise StoreClosed("this PostgreSQL store is not open: call open() first, and do not use it after close()")
        return self._components

    async def _execute(self, command: Command) -> Response:
        parts = self._require_open()
        response = await parts.writer.submit(command) or {}
        if "error" in response:
            raise_refusal(command, response)
        if not parts.notifier.is_listening:
            parts.notifier.notify_all()  # waiters in this process need no poll for it
        return response

    async def _liveness_context(self) -> dict[str, Any]:
        """Return what the server needs to decide which workers are alive: this host and its dead workers."""
        queries = self._require_open().queries
        return {"here": queries.host, "dead": await queries.dead_local_workers()}


def _make_create_command(run: NewRun, worker_id: str | None) -> Command:
    return Command(
        "create",
        run.run_id,
        entries=run.entries,
        size=measure_entries(run.run_id, run.entries, first_seq=0),
        parameters={
            "agent_name": escape_text(run.agent_name),
            "caller_id": escape_text(run.caller_id),
            "parent_run_id": None if run.parent_run_id is None else escape_text(run.parent_run_id),
            "worker_id": None if worker_id is None else escape_text(worker_id),
            "labels": {escape_text(name): escape_text(value) for name, value in run.labels.items()},
            "priority": run.priority,
            "concurrency_key": escape_text(run.concurrency_key) or None,
            "tenant": escape_text(run.tenant),
            "background": run.background,
            "not_before": None if run.not_before is None else run.not_before.isoformat(),
            # Older workers do not expect that a run which they start is queued.
            "within_limits": True,
            "wait": _BACKOFF_S[1],
            "info": run.info,
            "progress": run.progress,
        },
    )


def _make_claim(run_id: str, worker_id: str, response: Response) -> Claim:
    taken_from = response.get("taken_from")  # older functions of the schema do not return it
    return Claim(
        run_id=run_id,
        worker_id=worker_id,
        token=response["token"],
        strikes=response["strikes"],
        taken_from=None if taken_from is None else unescape_text(taken_from),
    )


def _encode_mail(mail: Mail) -> dict[str, Any]:
    return {"mail_id": escape_text(mail.mail_id), "topic": escape_text(mail.topic), "body": mail.body}


def _encode_notice(notice: Notice | None) -> dict[str, Any]:
    if notice is None:
        return {}
    return {"notify": {"run_id": escape_text(notice.run_id), **_encode_mail(notice.mail)}}
