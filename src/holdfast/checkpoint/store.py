"""The store protocol: the contract between holdfast and a store."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from holdfast.checkpoint.journal import Append
from holdfast.checkpoint.record import (
    CLAIMABLE_STATUSES,
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
from holdfast.checkpoint.workers import Claim, Fleet, LimitUsage, WorkerHeartbeat, WorkerIdentity
from holdfast.config import LimitKind
from holdfast.core.ports import Transactions
from holdfast.db.tables import Tables

#: `full`: what was acknowledged survives a power cut. `process`: it survives the process, and is faster.
Durability = Literal["full", "process"]


#: For `create(connection=...)` on a store that cannot take part in a transaction of the user.
NO_SUBMIT_CONNECTION = "submit(connection=...) needs a store on PostgreSQL: leave out `connection`"

#: For `transact` of a store without transactions.
NO_TRANSACTIONS = "this store has no transactions: use a store in a SQLite file or on PostgreSQL"

#: Before and after every `seq`: a load after them reads all entries, or none.
START, END = -1, 2**62
#: A load after it reads neither entries nor mail.
RECORD_ONLY = END + 1


class StoreHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The condition of a store at one moment."""

    #: The version of the schema, zero if there is none yet; and the version that this code needs.
    version: int
    known_version: int
    #: Bytes that the store occupies, and how many of them are free for new data.
    size: int = 0
    free: int = 0
    #: Descriptions of damage to the store. Loading a run finds damage to that run.
    problems: Sequence[str] = ()
    #: What a person should change, with the advice. The data is not damaged.
    warnings: Sequence[str] = ()


@runtime_checkable
class SupportsHealthCheck(Protocol):
    """A store that can be inspected. Not every store has to be."""

    async def check_health(self, *, quick: bool = False) -> StoreHealth:
        """Check the whole store. May be slow. Changes nothing, and does not block writes for long.

        Args:
            quick: read only the version. Needs no open store.

        Raises:
            SchemaTooNew: a newer holdfast wrote it.
        """
        ...


class RunStore(Protocol):
    """Durable memory of runs. Safe to share between the tasks of one event loop.

    No need to inherit: any object with these methods is a store. The suite in `holdfast.testing` is this contract
    as tests; a store is finished when it passes. Every method may raise `StoreError` or a subclass of it: then
    nothing was changed, earlier acknowledged writes are safe, and the call can be retried.
    """

    #: The functions that `transact` can call.
    transactions: Transactions

    #: Whether runs outlive the process. A store that says so passes the multi-process part of the suite.
    durable: bool

    async def open(self) -> None:
        """Make the store ready; create or migrate what it needs. Once, before anything else.

        Raises:
            SchemaTooNew: a newer holdfast wrote it. Nothing was changed.
        """
        ...

    async def close(self) -> None:
        """Finish the writes in progress, then close. May be called more than once. No run is written afterwards.

        A worker that is still registered stays alive as long as its process: it keeps its claims.
        """
        ...

    def tables(self) -> Tables:
        """Return the tables of batteries in the same database, always the same object. In memory if it has none.

        They need no open store. `close` of the store closes them.
        """
        ...

    # -- workers ------------------------------------------------------------------------------------------------

    async def register_worker(self, worker: WorkerIdentity) -> None:
        """Send heartbeats for `worker` until `deregister_worker`, or until the process ends.

        A second call for the same worker replaces its agents.
        """
        ...

    async def deregister_worker(self, worker_id: str) -> None:
        """End the heartbeat of a worker: the runs it still holds become interrupted. Unknown ids are fine."""
        ...

    async def list_workers(self) -> Sequence[WorkerHeartbeat]:
        """Return the registered workers with their agents, ordered by id. Reads no runs."""
        ...

    async def read_fleet(self) -> Fleet:
        """Return the registered workers, and the runs counted by agent and status. Reads no records."""
        ...

    # -- one run ------------------------------------------------------------------------------------------------

    async def create(self, run: NewRun, *, worker_id: str | None = None, connection: Any = None) -> Claim | None:
        """Put a run into the store: running and claimed by `worker_id`, or queued and unclaimed.

        If a concurrency limit of the run is reached, it is queued although there is a `worker_id`, and `None` returned.

        Args:
            connection: the user's connection to the store's database. The run is queued, and exists if and only if the
                transaction of the connection commits.

        Raises:
            RunExists: there is one with this id, in whatever status. Nothing was changed.
            DefinitionError: the connection cannot be used, or this store cannot take part in a transaction of the user.
        """
        ...

    def append(self, claim: Claim, write: Append) -> Awaitable[None]:
        """Add entries to the run and replace its progress. Once this returns they survive `kill -9`.

        All of the write is there, or nothing: entries, progress and the consumption of mail. The first entry carries
        the record's `next_seq`.

        Raises:
            ClaimLost: another worker owns the run now, or it is terminal. Nothing was written.
            StoreError: an id in `consumed` is not unread mail of the run. Nothing was written.
            UnreadMail: the run has unread mail of a topic in `unless_mail`. Nothing was written; the claim is still
                held.
        """
        ...

    async def transact(self, claim: Claim, function: Callable[[Any], Any], make_write: Callable[[Any], Append]) -> Any:
        """Call `function` with a connection to the store's database, and append, in one transaction.

        What the function writes and the entries are both there, or neither is. Returns what the function returned, once
        that is committed: also to a caller that is cancelled meanwhile. The function runs in a thread if it is sync. An
        error of the database that a repeated call may not meet, such as a lost connection, is a `StoreError`.

        Args:
            make_write: called in the event loop with what the function returned. If it raises, nothing is written.

        Raises:
            DefinitionError: this store has no transactions for such a function. It was not called.
            ClaimLost, StoreError, UnreadMail: as for `append`. Anything that `function` raises. Nothing was written.
        """
        ...

    async def load(self, run_id: str, *, after: int = -1) -> StoredRun:
        """Return the record, all entries with a `seq` above `after`, and the unread mail. Changes nothing.

        Args:
            after: `END` reads no entry: record and mail cost the same however long the journal is. `RECORD_ONLY`
                reads no mail either: the record costs the same however much mail is unread.

        Raises:
            RunNotFound: there is no such run.
            RunDamaged: an entry is missing or is not what was written. Other runs are not affected.
        """
        ...

    async def release(self, claim: Claim, release: Release) -> None:
        """End the claim and leave the run in the store as `release` says. No later write under the claim succeeds.

        A waiting run is claimable from `wake_at` on, and as soon as mail of a topic in `wake_on` is posted. A run whose
        cancel was requested neither waits nor is parked, unless the release has `despite_cancel`: it is interrupted,
        without the delay of the release, and its next owner cancels it. The mail of `notify` is posted if and only if
        the claim ends.

        Raises:
            ClaimLost: as for `append`.
            UnreadMail: the run has unread mail of a topic in `wake_on`, or would be done although its cancel was
                requested. Nothing was written; the claim is still held.
        """
        ...

    async def remove(self, run_id: str, *, claim: Claim | None = None, erase: bool = False) -> None:
        """Delete the run, its journal and mail, and the runs it started. A missing run is fine without a claim.

        A store may delete the entries of a removed run later, in the background.

        Args:
            erase: return only when the entries and the mail of this and all earlier removals are deleted.

        Raises:
            ClaimLost: `claim` is given and is not the run's newest, or the run is gone.
            RunBusy: no claim is given and a live worker owns the run.
        """
        ...

    # -- finding and claiming -----------------------------------------------------------------------------------

    async def list_page(
        self,
        filter: RunFilter | None = None,
        *,
        limit: int = 50,
        cursor: str | None = None,
        oldest_first: bool = False,
    ) -> RunPage:
        """Return up to `limit` records that match, newest first by creation. Never reads journals.

        Args:
            cursor: of the page before, in the same order. Pages that follow each other repeat no run, and leave none
                out that was there when the first page was read and still is.

        Raises:
            InvalidCursor: the cursor is not one that this store has returned.
        """
        ...

    async def claim(
        self,
        run_id: str,
        worker_id: str,
        *,
        statuses: Collection[RunStatus] = CLAIMABLE_STATUSES,
        steal: bool = False,
        within_limits: bool = False,
    ) -> Claim:
        """Take the run: exactly one of any number of callers wins. Counts a strike and starts the backoff.

        Args:
            statuses: what the run may be now. A person's command may add `PARKED` or `FAILED`.
            steal: take it from a live owner too, whose writes are refused from then on.
            within_limits: refuse if a concurrency limit of the run is reached. Without it a person's command may take
                the run, to cancel it for example.

        Raises:
            RunNotFound: there is no such run.
            RunBusy: a live worker owns it.
            RunNotClaimable: its status is not among `statuses`.
            LimitReached: `within_limits` is given, and a limit is reached.
        """
        ...

    async def claim_next(self, worker_id: str, *, agents: Collection[str], limit: int) -> Sequence[Claim]:
        """Claim up to `limit` interrupted runs of these agents whose backoff has passed. Waits for no run.

        A waiting run counts as interrupted once its `wake_at` has passed. The other waiting runs cost nothing.

        Runs of a higher priority come first. Within a priority it is fair: the oldest run of each caller comes before
        the second oldest of any. A run whose parent is in the store and not terminal is left out, unless it is
        in the background: its parent starts it.

        Never exceeds a concurrency limit, however many workers claim at the same time. Runs whose limit is reached are
        left out, and block no others.
        """
        ...

    # -- concurrency limits -------------------------------------------------------------------------------------

    async def set_limit(self, kind: LimitKind, name: str, max_runs: int | None, *, default: bool = False) -> bool:
        """Limit the runs of an agent or a key, for all workers, from now on. Runs in progress continue.

        A slot is held by each running run that has a live owner, and no parent or is in the background.

        Args:
            max_runs: `None` removes the limit.
            default: leave a limit of the same agent or key that was set without `default`.

        Returns whether there was a limit of this agent or key before.
        """
        ...

    async def list_limits(self) -> Sequence[LimitUsage]:
        """Return all limits, agents before keys, by name."""
        ...

    # -- mail ---------------------------------------------------------------------------------------------------

    async def post(self, run_id: str, mail: Mail) -> Receipt:
        """Add mail to the run. Once this returns it survives `kill -9`. Idempotent by mail id.

        A run that waits for this topic becomes interrupted in the same transaction, without a backoff and without a
        reason. If the run had mail with this id before, consumed or not, nothing is changed, whatever its status.

        Raises:
            RunNotFound: there is no such run.
            RunEnded: it is done, failed or cancelled, and reads no more mail. Nothing was written.
        """
        ...

    # -- signals between processes ------------------------------------------------------------------------------

    async def request_cancel(self, run_id: str) -> None:
        """Ask the owner of the run to cancel it. The request stays until the run is terminal.

        Raises:
            RunNotFound: there is no such run.
        """
        ...

    async def pending(self, worker_id: str) -> Pending:
        """Return what others want of the runs that this worker holds. Costs the same however many it holds."""
        ...

    async def wait_for_change(self, timeout: timedelta) -> bool:
        """Wait until a run may have been submitted, released, removed, asked to cancel or sent mail; at most `timeout`.

        Returns False on a timeout. Notifications may come too often or be lost: callers poll as well.
        """
        ...

    # -- drafts -------------------------------------------------------------------------------------------------

    async def put_draft(self, claim: Claim, draft: bytes | None) -> None:
        """Keep the draft of the reply in progress, in place of the one before; `None` drops it.

        For watchers: outside the journal, not synced, and lost with the process or the server. Ignored if the claim is
        not the run's newest, or the run is not running or gone. Never delays the writes of runs.
        """
        ...

    async def read_draft(self, run_id: str, *, keep_for: timedelta = timedelta(0)) -> bytes | None:
        """Return the draft that was put under the newest claim of a running run; `None` if there is none.

        Args:
            keep_for: ask the worker of the run, now or later, to put drafts until this time has passed. The request
                need not survive anything. Zero asks for nothing.
        """
        ...

    async def purge(self, *, limit: int = 100) -> int:
        """Remove up to `limit` terminal, expired runs, with the runs they started. Returns how many.

        A run whose parent is in the store and not done is left: a resumed parent reads its outcome. It is removed with
        its parent.
        """
        ...


async def get_record(store: RunStore, run_id: str) -> RunRecord:
    """Return the record of a run. Reads neither its journal nor its mail.

    Raises:
        RunNotFound: there is no such run.
    """
    return (await store.load(run_id, after=RECORD_ONLY)).record


async def iter_runs(
    store: RunStore, filter: RunFilter | None = None, *, page_size: int = 500
) -> AsyncIterator[RunRecord]:
    """Stream the records that match, oldest first. Never reads journals.

    A slow reader holds no transaction between two pages.
    """
    cursor: str | None = None
    while True:
        page = await store.list_page(filter, limit=page_size, cursor=cursor, oldest_first=True)
        for record in page.records:
            yield record
        if page.cursor is None:
            return
        cursor = page.cursor
