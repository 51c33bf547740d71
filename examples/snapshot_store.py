"""A complete store in one file: each call reads the file, changes the contents in memory, and replaces the file.

It is slow, because each call reads and writes all runs. It survives `kill -9` but not a power cut, because it never
calls fsync.
"""

import asyncio
import contextlib
import fcntl
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from holdfast.checkpoint import RunFilter, RunRecord, RunStatus
from holdfast.checkpoint.journal import Append, Entry
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    TERMINAL_STATUSES,
    Mail,
    NewRun,
    Pending,
    Receipt,
    Release,
    RunPage,
    StoredRun,
)
from holdfast.checkpoint.store import NO_SUBMIT_CONNECTION, NO_TRANSACTIONS, RECORD_ONLY
from holdfast.checkpoint.workers import (
    Claim,
    CountedRow,
    Fleet,
    LimitName,
    LimitUsage,
    ProcessIdentity,
    Slots,
    WorkerHeartbeat,
    WorkerIdentity,
    backoff,
    choose_fairly,
    is_process_alive,
    list_limit_names,
    make_limit,
    merge_rows,
)
from holdfast.config import ConcurrencyLimit, LimitKind
from holdfast.core.errors import DefinitionError
from holdfast.core.ports import Transactions
from holdfast.db.sqlite_tables import SqliteTables
from holdfast.db.tables import Tables
from holdfast.errors import (
    ClaimLost,
    InvalidCursor,
    LimitReached,
    RunBusy,
    RunDamaged,
    RunEnded,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    StoreClosed,
    StoreError,
    UnreadMail,
)


class Run(msgspec.Struct):
    """A run, its journal and its mail. The checksums find entries that the disk has changed."""

    record: RunRecord
    #: Its place in the order of creation, and so in pages.
    number: int
    entries: list[Entry] = []
    checksums: list[int] = []
    #: Unread mail by id, in the order of posting, and consumed mail without its body.
    unread: dict[str, Mail] = {}
    consumed: dict[str, Mail] = {}
    #: The reply in progress, and the token of the claim under which it was put.
    draft: tuple[int, bytes] | None = None

    def update(self, **changes: Any) -> None:
        self.record = msgspec.structs.replace(self.record, updated_at=datetime.now(UTC), **changes)

    def append(self, entries: Sequence[Entry]) -> None:
        for seq, entry in enumerate(entries, self.record.next_seq):
            if entry.seq != seq:
                raise StoreError(f"run {self.record.run_id}: expected entry {seq}, got {entry.seq}")
        self.entries += entries
        self.checksums += [entry.checksum() for entry in entries]
        size = sum(len(entry.body) for entry in self.entries)
        self.update(next_seq=self.record.next_seq + len(entries), size=size)

    def clear(self) -> None:
        self.entries, self.checksums = [], []

    def consume(self, mail_ids: Sequence[str]) -> None:
        if not self.unread.keys() >= set(mail_ids):
            raise StoreError(f"run {self.record.run_id}: {mail_ids} is not all unread mail of the run")
        for mail_id in mail_ids:
            self.consumed[mail_id] = msgspec.structs.replace(self.unread.pop(mail_id), body=b"")

    def check_unread(self, topics: Sequence[str]) -> None:
        if any(mail.topic in topics for mail in self.unread.values()):
            raise UnreadMail(self.record.run_id)

    @property
    def limit_names(self) -> Sequence[LimitName]:
        record = self.record
        return list_limit_names(record.agent_name, record.concurrency_key, shares_parent_slot=record.shares_parent_slot)

    def is_claimable(self, now: datetime) -> bool:
        """Return whether the run is interrupted, or waits until a time that has passed."""
        record = self.record
        is_awake = record.status is RunStatus.WAITING and record.wake_at is not None and record.wake_at <= now
        return record.is_interrupted or is_awake


class Contents(msgspec.Struct):
    """The contents of the file. Runs are in order of creation."""

    #: Grows with each claim in the store and never shrinks, so that no two claims have the same token.
    token: int = 0
    #: The number of runs that were ever created.
    created: int = 0
    #: Counts the changes that `wait_for_change` reports.
    changes: int = 0
    workers: dict[str, WorkerIdentity] = {}
    runs: dict[str, Run] = {}
    #: By run id: until when its drafts are requested.
    draft_requests: dict[str, datetime] = {}
    #: Each with whether it is a default.
    limits: list[tuple[ConcurrencyLimit, bool]] = []

    def get(self, run_id: str) -> Run:
        if run_id not in self.runs:
            raise RunNotFound(run_id)
        return self.runs[run_id]

    def post(self, run_id: str, mail: Mail) -> Receipt:
        run = self.get(run_id)
        known = run.unread.get(mail.mail_id) or run.consumed.get(mail.mail_id)
        if known is not None:
            return Receipt(is_new=False, mail=known, consumed=mail.mail_id in run.consumed)
        if run.record.is_terminal:
            raise RunEnded(run_id, run.record.status)
        now = datetime.now(UTC)
        posted = run.unread[mail.mail_id] = msgspec.structs.replace(mail, posted_at=now)
        if mail.topic in run.record.wake_on:
            run.update(status=RunStatus.INTERRUPTED, reason="", wake_at=None, wake_on=(), not_before=now)
        self.changes += 1
        return Receipt(is_new=True, mail=posted)

    def get_claimed(self, claim: Claim) -> Run:
        """Return the run if the claim still holds. This is the fence: the token comes from the caller."""
        run = self.runs.get(claim.run_id)
        if run is None or run.record.status is not RunStatus.RUNNING:
            raise ClaimLost(claim.run_id, claim.token, None)
        if run.record.token != claim.token:
            raise ClaimLost(claim.run_id, claim.token, run.record.token)
        return run

    def claim(self, run: Run, worker_id: str) -> Claim:
        self.token += 1
        strikes = run.record.strikes + 1
        taken_from = run.record.owner if run.record.status is RunStatus.RUNNING else None
        run.update(
            status=RunStatus.RUNNING,
            owner=worker_id,
            owner_alive=worker_id in self.workers,
            token=self.token,
            strikes=strikes,
            not_before=datetime.now(UTC) + backoff(strikes),
            reason="",
            expires_at=None,
            wake_at=None,
            wake_on=(),
        )
        return Claim(
            run_id=run.record.run_id, worker_id=worker_id, token=self.token, strikes=strikes, taken_from=taken_from
        )

    def get_parent(self, record: RunRecord) -> RunRecord | None:
        parent = self.runs.get(record.parent_run_id or "")
        return None if parent is None else parent.record

    def get_slots(self) -> Slots:
        """Return the slots of all limits. A running run with a live owner holds one of each of its limits."""
        caps: dict[LimitName, int] = {(limit.kind, limit.name): limit.max_runs for limit, _ in self.limits}
        return Slots(caps, [run.limit_names for run in self.runs.values() if run.record.owner_alive])

    def get_held(self, worker_id: str) -> list[Run]:
        held = (RunStatus.RUNNING, worker_id)
        return [run for run in self.runs.values() if (run.record.status, run.record.owner) == held]

    def remove(self, run_id: str) -> None:
        """Remove the run and the runs it started. Without it, runs that name it as their parent stay."""
        if self.runs.pop(run_id, None) is None:
            return
        for child_id in [run.record.run_id for run in self.runs.values() if run.record.parent_run_id == run_id]:
            self.remove(child_id)
        self.changes += 1


class SnapshotStore:
    """Keeps all runs in one file. Processes of one host may share it."""

    durable = True
    #: It has no database in which a user's function could write.
    transactions: Transactions = "none"

    def __init__(self, location: str) -> None:
        self._path = Path(location)
        self._tables: Tables = SqliteTables(f"{location}-tables")
        self._is_open = False

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        await self._tables.close()

    def tables(self) -> Tables:
        return self._tables

    # -- the file -----------------------------------------------------------------------------------------------

    def _read(self) -> Contents:
        """Read the file. Needs no lock: the rename is atomic, so a reader sees the old file or the new one."""
        if not self._is_open:
            raise StoreClosed("the store is not open")
        packed = self._path.read_bytes() if self._path.exists() else msgspec.msgpack.encode(Contents())
        contents = msgspec.msgpack.decode(packed, type=Contents)
        alive = {worker_id for worker_id, worker in contents.workers.items() if self._is_alive(worker.process)}
        for run in contents.runs.values():
            owner_alive = run.record.status is RunStatus.RUNNING and run.record.owner in alive
            run.record = msgspec.structs.replace(run.record, owner_alive=owner_alive)
        return contents

    def _is_alive(self, process: ProcessIdentity) -> bool:
        """A process on another host cannot be checked, so it counts as alive until its worker is deregistered."""
        return is_process_alive(process) is not False

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Contents]:
        """Lock the store and yield its contents. Write them at the end of the block, unless it raises."""
        with self._lock():
            contents = self._read()
            yield contents
            self._write(contents)

    def _write(self, contents: Contents) -> None:
        self._replace_file(msgspec.msgpack.encode(contents))

    def _replace_file(self, packed: bytes) -> None:
        temporary = self._path.with_suffix(".new")
        temporary.write_bytes(packed)
        temporary.rename(self._path)

    # -- workers ------------------------------------------------------------------------------------------------

    async def register_worker(self, worker: WorkerIdentity) -> None:
        with self._transaction() as contents:
            contents.workers[worker.worker_id] = worker

    async def deregister_worker(self, worker_id: str) -> None:
        with self._transaction() as contents:
            contents.workers.pop(worker_id, None)
            contents.changes += 1

    async def list_workers(self) -> Sequence[WorkerHeartbeat]:
        now = datetime.now(UTC)
        return [
            WorkerHeartbeat(worker=worker, alive=self._is_alive(worker.process), last_at=now)
            for _, worker in sorted(self._read().workers.items())
        ]

    async def read_fleet(self) -> Fleet:
        contents, now = self._read(), datetime.now(UTC)
        counts = merge_rows(
            CountedRow(
                agent_name=run.record.agent_name,
                status=run.record.status,
                owner_alive=run.record.owner_alive,
                runs=1,
                due=int(run.record.not_before <= now),
                oldest=run.record.updated_at if run.record.not_before <= now else None,
            )
            for run in contents.runs.values()
        )
        return Fleet(workers=await self.list_workers(), counts=counts)

    # -- one run ------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        if connection is not None:
            raise DefinitionError(NO_SUBMIT_CONNECTION)
        with self._transaction() as contents:
            if run.run_id in contents.runs:
                raise RunExists(run.run_id)
            now = datetime.now(UTC)
            record = RunRecord(
                run_id=run.run_id,
                agent_name=run.agent_name,
                caller_id=run.caller_id,
                parent_run_id=run.parent_run_id,
                tenant=run.tenant,
                background=run.background,
                status=RunStatus.QUEUED,
                created_at=now,
                updated_at=now,
                owner=None,
                owner_alive=False,
                token=0,
                strikes=0,
                not_before=run.not_before or now,
                labels=run.labels,
                priority=run.priority,
                concurrency_key=run.concurrency_key,
                reason="",
                cancel_requested=False,
                expires_at=None,
                next_seq=0,
                size=0,
                info=run.info,
                progress=run.progress,
            )
            contents.created += 1
            new = contents.runs[run.run_id] = Run(record=record, number=contents.created)
            new.append(run.entries)
            contents.changes += 1
            if worker_id is None or not contents.get_slots().try_take(new.limit_names):
                return None
            return contents.claim(new, worker_id)

    async def transact(self, claim: Claim, function: Any, make_write: Any) -> Any:
        raise DefinitionError(NO_TRANSACTIONS)

    async def append(self, claim: Claim, write: Append) -> None:
        with self._transaction() as contents:
            run = contents.get_claimed(claim)
            run.consume(write.consumed)
            run.check_unread(write.unless_mail)
            if write.rewrite:
                run.clear()
            run.append(write.entries)
            run.update(progress=write.progress)
            if write.step_finished:
                run.update(strikes=0, not_before=min(run.record.not_before, datetime.now(UTC)))

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        run = self._read().get(run_id)
        if [entry.checksum() for entry in run.entries] != run.checksums:
            raise RunDamaged(run_id, "an entry differs from what was written")
        entries = tuple(entry for entry in run.entries if entry.seq > after)
        mail = tuple(run.unread.values()) if after < RECORD_ONLY else ()
        return StoredRun(record=run.record, entries=entries, mail=mail)

    async def release(self, claim: Claim, release: Release) -> None:
        with self._transaction() as contents:
            run = contents.get_claimed(claim)
            run.consume(release.consumed)
            run.check_unread(release.wake_on)
            if release.status is RunStatus.DONE and run.record.cancel_requested:
                raise UnreadMail(claim.run_id)
            run.append(release.entries)
            now = datetime.now(UTC)
            is_cancelled = release.yields_to_cancel and run.record.cancel_requested
            waits = release.status is RunStatus.WAITING and not is_cancelled
            run.update(
                status=RunStatus.INTERRUPTED if is_cancelled else release.status,
                owner_alive=False,
                reason=release.reason,
                strikes=release.strikes,
                progress=run.record.progress if release.progress is None else release.progress,
                not_before=now if is_cancelled else now + release.delay,
                expires_at=None if release.retention is None else now + release.retention,
                cancel_requested=run.record.cancel_requested and release.status not in TERMINAL_STATUSES,
                wake_at=release.wake_at if waits else None,
                wake_on=release.wake_on if waits else (),
            )
            if release.notify is not None:
                with contextlib.suppress(RunNotFound, RunEnded):
                    contents.post(release.notify.run_id, release.notify.mail)
            contents.changes += 1

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        with self._transaction() as contents:
            record = contents.runs[run_id].record if run_id in contents.runs else None
            if claim is not None and (record is None or record.token != claim.token):
                raise ClaimLost(run_id, claim.token, None if record is None else record.token)
            if claim is None and record is not None and record.owner_alive:
                raise RunBusy(run_id, record.owner or "")
            contents.remove(run_id)

    # -- finding and claiming -----------------------------------------------------------------------------------

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        contents = self._read()
        runs = list(contents.runs.values())
        if not oldest_first:
            runs.reverse()
        if cursor is not None:
            last = parse_cursor(cursor)
            runs = [run for run in runs if (run.number > last if oldest_first else run.number < last)]
        found = [run for run in runs if (filter or RunFilter()).matches(run.record)]
        is_last = len(found) <= limit
        return RunPage(
            records=[run.record for run in found[:limit]], cursor=None if is_last else str(found[limit - 1].number)
        )

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        with self._transaction() as contents:
            run = contents.get(run_id)
            record = run.record
            if record.owner_alive and not steal:
                raise RunBusy(run_id, record.owner or "")
            # A running run whose owner is dead counts as interrupted, and so does a waiting run that is due.
            is_interrupted = run.is_claimable(datetime.now(UTC))
            if record.status not in statuses and not (is_interrupted and RunStatus.INTERRUPTED in statuses):
                raise RunNotClaimable(run_id, record.status, record.reason)
            if within_limits and not contents.get_slots().try_take(run.limit_names):
                raise LimitReached(run_id, record.status)
            return contents.claim(run, worker_id)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        with self._transaction() as contents:
            now = datetime.now(UTC)
            #: By priority and caller.
            queues: dict[int, dict[str, list[tuple[Sequence[LimitName], Run]]]] = {}
            for run in contents.runs.values():
                record, parent = run.record, contents.get_parent(run.record)
                is_due = run.is_claimable(now) and record.not_before <= now
                may_leave_parent = record.background or parent is None or parent.is_terminal
                if is_due and record.agent_name in agents and may_leave_parent:
                    callers = queues.setdefault(record.priority, {})
                    callers.setdefault(record.caller_id, []).append((run.limit_names, run))
            slots = contents.get_slots()
            chosen: list[Run] = []
            for priority in sorted(queues, reverse=True):
                chosen += choose_fairly(queues[priority].values(), slots, limit - len(chosen))
            return [contents.claim(run, worker_id) for run in chosen]

    # -- concurrency limits -------------------------------------------------------------------------------------

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        with self._transaction() as contents:
            same = [known for known in contents.limits if (known[0].kind, known[0].name) == (kind, name)]
            if not (default and same and not same[0][1]):
                contents.limits = [known for known in contents.limits if known not in same]
                if max_runs is not None:
                    contents.limits.append((make_limit(kind, name, max_runs), default))
            contents.changes += 1
            return bool(same)

    async def list_limits(self) -> Sequence[LimitUsage]:
        contents = self._read()
        slots = contents.get_slots()
        return [
            LimitUsage(limit=limit, running=slots.used[limit.kind, limit.name], is_default=is_default)
            for limit, is_default in sorted(contents.limits, key=lambda known: (known[0].kind, known[0].name))
        ]

    # -- mail ---------------------------------------------------------------------------------------------------

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        with self._transaction() as contents:
            return contents.post(run_id, mail)

    # -- between processes --------------------------------------------------------------------------------------

    async def request_cancel(self, run_id: str) -> None:
        with self._transaction() as contents:
            run = contents.get(run_id)
            run.update(cancel_requested=not run.record.is_terminal)
            contents.changes += 1

    async def pending(self, worker_id: str) -> Pending:
        contents, now = self._read(), datetime.now(UTC)
        held, watched = contents.get_held(worker_id), contents.draft_requests
        return Pending(
            mail=[run.record.run_id for run in held if run.unread],
            cancels=[run.record.run_id for run in held if run.record.cancel_requested],
            drafts=[run.record.run_id for run in held if watched.get(run.record.run_id, now) > now],
        )

    async def wait_for_change(self, timeout: timedelta) -> bool:
        before = self._read().changes
        deadline = time.monotonic() + timeout.total_seconds()
        while time.monotonic() < deadline:
            await asyncio.sleep(0.01)
            if self._read().changes != before:
                return True
        return False

    # -- drafts -------------------------------------------------------------------------------------------------

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        with self._transaction() as contents, contextlib.suppress(ClaimLost):
            contents.get_claimed(claim).draft = None if draft is None else (claim.token, draft)

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        if keep_for:
            self._request_drafts(run_id, keep_for)
        run = self._read().runs.get(run_id)
        if run is None or run.draft is None or run.record.status is not RunStatus.RUNNING:
            return None
        token, draft = run.draft
        return draft if token == run.record.token else None

    def _request_drafts(self, run_id: str, keep_for: timedelta) -> None:
        with self._transaction() as contents:
            until = datetime.now(UTC) + keep_for
            contents.draft_requests[run_id] = max(until, contents.draft_requests.get(run_id, until))

    async def purge(self, *, limit: int = 100) -> int:
        with self._transaction() as contents:
            expired = []
            for run in contents.runs.values():
                parent = contents.get_parent(run.record)
                expires_at = run.record.expires_at
                is_expired = run.record.is_terminal and expires_at is not None and expires_at <= datetime.now(UTC)
                if is_expired and (parent is None or parent.status is RunStatus.DONE):
                    expired.append(run.record.run_id)
            for run_id in expired[:limit]:
                contents.remove(run_id)
            return len(expired[:limit])


def parse_cursor(cursor: str) -> int:
    if not cursor.isdecimal() or len(cursor) > 18:
        raise InvalidCursor(cursor)
    return int(cursor)
