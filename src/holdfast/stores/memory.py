"""The store in memory, for tests and light hosts. It does not survive its process."""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.checkpoint.errors import (
    ClaimLost,
    LimitReached,
    RunBusy,
    RunEnded,
    RunExists,
    RunNotClaimable,
    RunNotFound,
    StoreClosed,
)
from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
    TERMINAL_STATUSES,
    Mail,
    NewRun,
    Pending,
    Receipt,
    Release,
    RunFilter,
    RunPage,
    RunRecord,
    RunStatus,
    StoredRun,
)
from holdfast.checkpoint.store import NO_SUBMIT_CONNECTION, NO_TRANSACTIONS, RECORD_ONLY
from holdfast.checkpoint.workers import (
    Claim,
    CountedRow,
    Fleet,
    LimitUsage,
    WorkerHeartbeat,
    WorkerIdentity,
    choose_fairly,
    merge_rows,
)
from holdfast.clock import CLOCK, Clock
from holdfast.config import LimitKind
from holdfast.core.errors import DefinitionError
from holdfast.core.ports import Transactions
from holdfast.db.tables import Tables
from holdfast.stores.memory_run import MemoryLimits, MemoryRun, group_by_caller, parse_cursor


class MemoryStore:
    """Keeps runs until the process ends: none survive a restart. Closing and opening it again loses nothing.

    A worker is alive from `register_worker` to `deregister_worker`.
    """

    durable = False
    transactions: Transactions = "none"

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock = clock or CLOCK.get()
        self._is_open = False
        self._tables: Tables | None = None
        self._token = 0
        self._created = 0
        self._workers: dict[str, WorkerIdentity] = {}
        #: In order of creation, which is the order of listings.
        self._runs: dict[str, MemoryRun] = {}
        self._children: dict[str, dict[str, None]] = {}
        #: The runs that have a cancel request, and those that have unread mail. In order: `pending` lists them.
        self._cancel_requested: dict[str, None] = {}
        self._unread: dict[str, None] = {}
        self._limits = MemoryLimits()
        self._change_event = asyncio.Event()
        #: The token of the claim and the draft that was put under it, and until when drafts are requested, by run id.
        self._drafts: dict[str, tuple[int, bytes]] = {}
        self._draft_requests: dict[str, datetime] = {}

    async def open(self) -> None:
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False
        self._notify_change()

    def tables(self) -> Tables:
        if self._tables is None:
            from holdfast.db.sqlite_tables import MemoryTables  # runs in memory need no SQLite

            self._tables = MemoryTables()
        return self._tables

    async def register_worker(self, worker: WorkerIdentity) -> None:
        self._check_open()
        self._workers[worker.worker_id] = worker

    async def deregister_worker(self, worker_id: str) -> None:
        self._check_open()
        self._workers.pop(worker_id, None)
        self._notify_change()

    async def list_workers(self) -> Sequence[WorkerHeartbeat]:
        self._check_open()
        now = self._clock.now()
        return [WorkerHeartbeat(worker=each, alive=True, last_at=now) for _, each in sorted(self._workers.items())]

    async def read_fleet(self) -> Fleet:
        workers, now = await self.list_workers(), self._clock.now()
        counts = merge_rows(
            CountedRow(
                agent_name=run.new.agent_name,
                status=run.status,
                owner_alive=self._has_live_owner(run),
                runs=1,
                due=int(run.not_before <= now),
                oldest=run.updated_at if run.not_before <= now else None,
            )
            for run in self._runs.values()
        )
        return Fleet(workers=workers, counts=counts)

    # -- one run ------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        self._check_open()
        if connection is not None:
            raise DefinitionError(NO_SUBMIT_CONNECTION)
        if run.run_id in self._runs:
            raise RunExists(run.run_id)
        now = self._clock.now()
        new = msgspec.structs.replace(run, entries=(), labels=dict(run.labels))
        self._created += 1
        stored = MemoryRun(
            new=new,
            created_at=now,
            updated_at=now,
            not_before=run.not_before or now,
            progress=run.progress,
            number=self._created,
        )
        stored.extend(run.entries)
        self._runs[run.run_id] = stored
        if run.parent_run_id is not None:
            self._children.setdefault(run.parent_run_id, {})[run.run_id] = None
        if worker_id is not None and self._has_slot(stored):
            return self._claim_run(stored, worker_id)
        self._notify_change()
        return None

    async def append(self, claim: Claim, write: Append) -> None:
        self._get_claimed_run(claim).apply_append(write, self._clock.now())
        self._note_unread(claim.run_id)

    async def transact(self, claim: Claim, function: Any, make_write: Any) -> Any:
        raise DefinitionError(NO_TRANSACTIONS)

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        run = self._get_run(run_id)
        first = run.next_seq - len(run.journal)
        entries = tuple(run.journal[max(0, after + 1 - first) :])
        mail = run.get_unread_mail() if after < RECORD_ONLY else ()
        return StoredRun(record=self._make_record(run), entries=entries, mail=mail)

    async def release(self, claim: Claim, release: Release) -> None:
        run = self._get_claimed_run(claim)
        run.apply_release(release, self._clock.now())
        self._note_unread(claim.run_id)
        if not run.cancel_requested:
            self._cancel_requested.pop(claim.run_id, None)
        if (notice := release.notify) is not None and notice.run_id in self._runs:
            with suppress(RunEnded):  # there is no run to notify
                await MemoryStore.post(self, notice.run_id, notice.mail)
        self._notify_change()

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        self._check_open()
        run = self._runs.get(run_id)
        if claim is not None and (run is None or run.token != claim.token):
            raise ClaimLost(run_id, claim.token, None if run is None else run.token)
        if run is None:
            return
        if claim is None and run.owner is not None and self._has_live_owner(run):
            raise RunBusy(run_id, run.owner)
        self._remove_tree(run_id)
        self._notify_change()

    # -- finding and claiming -----------------------------------------------------------------------------------

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        self._check_open()
        position = None if cursor is None else parse_cursor(cursor)
        found: list[RunRecord] = []
        for run in self._runs.values() if oldest_first else reversed(self._runs.values()):
            if position is not None and (run.number <= position if oldest_first else run.number >= position):
                continue
            record = self._make_record(run)
            if filter is not None and not filter.matches(record):
                continue
            if len(found) >= limit:
                start = 0 if oldest_first else self._created + 1
                return RunPage(records=tuple(found), cursor=str(start if position is None else position))
            found.append(record)
            position = run.number
        return RunPage(records=tuple(found))

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        run = self._get_run(run_id)
        owned = self._has_live_owner(run)
        if owned and run.owner is not None and not steal:
            raise RunBusy(run_id, run.owner)
        current = {run.status}
        if (run.status is RunStatus.RUNNING and not owned) or self._is_awake(run):
            current.add(RunStatus.INTERRUPTED)
        if current.isdisjoint(statuses):
            raise RunNotClaimable(run_id, run.status, run.reason)
        if within_limits and not self._has_slot(run):
            raise LimitReached(run_id, run.status)
        return self._claim_run(run, worker_id)

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        self._check_open()
        slots = self._limits.find_slots(self._iter_owned())
        chosen: list[MemoryRun] = []
        for queues in group_by_caller(self._iter_claimable(frozenset(agents), self._clock.now())):
            chosen += choose_fairly(queues, slots, limit - len(chosen))
        return tuple(self._claim_run(run, worker_id) for run in chosen)

    # -- concurrency limits -------------------------------------------------------------------------------------

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        self._check_open()
        self._notify_change()
        return self._limits.set(kind, name, max_runs, default=default)

    async def list_limits(self) -> Sequence[LimitUsage]:
        self._check_open()
        return self._limits.list_usage(self._iter_owned())

    # -- mail ---------------------------------------------------------------------------------------------------

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        receipt = self._get_run(run_id).post(mail, self._clock.now())
        if receipt.is_new:
            self._unread[run_id] = None
            self._notify_change()
        return receipt

    # -- signals ------------------------------------------------------------------------------------------------

    async def request_cancel(self, run_id: str) -> None:
        run = self._get_run(run_id)
        if run.status not in TERMINAL_STATUSES:
            run.cancel_requested = True
            self._cancel_requested[run_id] = None
            self._notify_change()

    async def pending(self, worker_id: str) -> Pending:
        self._check_open()
        now = self._clock.now()
        watched = [run_id for run_id, until in self._draft_requests.items() if until > now and run_id in self._runs]
        return Pending(
            mail=self._get_held(worker_id, self._unread),
            cancels=self._get_held(worker_id, self._cancel_requested),
            drafts=self._get_held(worker_id, watched),
        )

    async def wait_for_change(self, timeout: timedelta) -> bool:
        self._check_open()
        changed = self._change_event
        waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(self._clock.sleep(timeout))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return changed.is_set()

    # -- drafts -------------------------------------------------------------------------------------------------

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        self._check_open()
        run = self._runs.get(claim.run_id)
        if run is None or run.token != claim.token or run.status is not RunStatus.RUNNING:
            return
        if draft is None:
            self._drafts.pop(claim.run_id, None)
        else:
            self._drafts[claim.run_id] = claim.token, draft

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        self._check_open()
        if keep_for:
            self._request_drafts(run_id, keep_for)
        run = self._runs.get(run_id)
        token, draft = self._drafts.get(run_id, (0, None))
        return draft if run is not None and run.token == token and run.status is RunStatus.RUNNING else None

    async def purge(self, *, limit: int = 100) -> int:
        self._check_open()
        now = self._clock.now()
        expired = [
            run_id
            for run_id, run in self._runs.items()
            if run.status in TERMINAL_STATUSES
            and run.expires_at is not None
            and run.expires_at <= now
            and not self._is_needed_by_parent(run)
        ][:limit]
        for run_id in expired:
            self._remove_tree(run_id)
        if expired:
            self._notify_change()
        return len(expired)

    # -- internals ----------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreClosed("this memory store is not open: call open() first, and do not use it after close()")

    def _get_run(self, run_id: str) -> MemoryRun:
        self._check_open()
        run = self._runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        return run

    def _get_claimed_run(self, claim: Claim) -> MemoryRun:
        """Return the run. Raises `ClaimLost` if the claim is not its newest or the run is not running."""
        self._check_open()
        run = self._runs.get(claim.run_id)
        if run is None or run.token != claim.token or run.status is not RunStatus.RUNNING:
            newer = run.token if run is not None and run.token != claim.token else None
            raise ClaimLost(claim.run_id, claim.token, newer)
        return run

    def _get_held(self, worker_id: str, run_ids: Iterable[str]) -> tuple[str, ...]:
        """Return those of the runs that the worker holds."""
        runs = ((run_id, self._runs[run_id]) for run_id in run_ids)
        return tuple(run_id for run_id, run in runs if run.status is RunStatus.RUNNING and run.owner == worker_id)

    def _note_unread(self, run_id: str) -> None:
        """Note that mail of the run was consumed."""
        if not self._runs[run_id].unread:
            self._unread.pop(run_id, None)

    def _has_live_owner(self, run: MemoryRun) -> bool:
        return run.status is RunStatus.RUNNING and run.owner in self._workers

    def _iter_owned(self) -> Iterator[MemoryRun]:
        return (run for run in self._runs.values() if self._has_live_owner(run))

    def _has_slot(self, run: MemoryRun) -> bool:
        return self._limits.find_slots(self._iter_owned()).try_take(run.limit_names)

    def _is_awake(self, run: MemoryRun) -> bool:
        return run.is_awake(self._clock.now())

    def _claim_run(self, run: MemoryRun, worker_id: str) -> Claim:
        self._token += 1
        return run.take(worker_id, self._token, self._clock.now())

    def _iter_claimable(self, agents: frozenset[str], now: datetime) -> Iterator[MemoryRun]:
        """Iterate over the runs that `claim_next` may take, oldest first."""
        for run in self._runs.values():
            claimable = self._is_awake(run) or (run.status in CLAIMABLE_STATUSES and not self._has_live_owner(run))
            if claimable and run.new.agent_name in agents and run.not_before <= now:
                parent = self._runs.get(run.new.parent_run_id or "")
                if run.new.background or parent is None or parent.status in TERMINAL_STATUSES:
                    yield run

    def _is_needed_by_parent(self, run: MemoryRun) -> bool:
        """Whether the parent of the run may still read its outcome."""
        parent = self._runs.get(run.new.parent_run_id or "")
        return parent is not None and parent.status is not RunStatus.DONE

    def _remove_tree(self, run_id: str) -> None:
        """Remove the run and its descendants."""
        remaining = [run_id]
        while remaining:
            removed = remaining.pop()
            run = self._runs.pop(removed, None)
            self._cancel_requested.pop(removed, None)
            self._unread.pop(removed, None)
            self._drafts.pop(removed, None)
            remaining.extend(self._children.pop(removed, ()))
            if run is not None and run.new.parent_run_id in self._children:
                self._children[run.new.parent_run_id].pop(removed, None)

    def _request_drafts(self, run_id: str, keep_for: timedelta) -> None:
        now = self._clock.now()
        self._draft_requests = {each: until for each, until in self._draft_requests.items() if until > now}
        self._draft_requests[run_id] = max(now + keep_for, self._draft_requests.get(run_id, now))

    def _notify_change(self) -> None:
        self._change_event.set()
        self._change_event = asyncio.Event()

    def _make_record(self, run: MemoryRun) -> RunRecord:
        return run.make_record(owner_alive=self._has_live_owner(run))
