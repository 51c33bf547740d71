"""The questions a store asks the server beside its writes."""

from collections.abc import AsyncIterator, Sequence

from holdfast.checkpoint.claim import Worker
from holdfast.checkpoint.liveness import is_alive, this_process
from holdfast.checkpoint.record import RunFilter, RunRecord, StoredRun
from holdfast.checkpoint.stores.postgres import wire
from holdfast.checkpoint.stores.postgres.database import Readers
from holdfast.checkpoint.stores.postgres.rows import RecordReader, process, stored_run
from holdfast.checkpoint.stores.postgres.scripts import Scripts
from holdfast.checkpoint.stores.postgres.text import from_text, to_text
from holdfast.checkpoint.stores.postgres.wire import as_int, as_text

#: Records that a listing reads at a time.
PAGE = 500
#: Waiting runs that are looked at first, and how many are named beyond those wanted, in case that others take some.
WINDOW, SPARE = 300, 16


class Questions:
    """Each is one statement, a transaction of its own."""

    def __init__(self, readers: Readers, scripts: Scripts) -> None:
        self._readers = readers
        #: The host on which processes are known to be dead or alive.
        self.here = to_text(this_process().host)
        self._records, self._tidy = scripts.query("records").encode(), scripts.query("tidy").encode()
        self._candidates = scripts.inline("select * from holdfast.candidates($1, $2, $3, $4, $5, $6)").encode()
        self._load = scripts.inline("select seq, layout, checksum, body from holdfast.load_run($1, $2)").encode()
        self._beat = scripts.inline("select holdfast.beat($1, $2, $3, $4, $5)").encode()
        self._discharge = scripts.inline("select holdfast.discharge($1)").encode()
        self._workers = scripts.inline(
            "select worker_id, host, pid, started from holdfast.worker where host = $1"
        ).encode()
        self._expires_in = scripts.inline(
            "select extract(epoch from expires_at - now())::text from holdfast.run where run_id = $1"
            " and expires_at is not null"
        ).encode()
        self._cancels = scripts.inline(
            "select run_id from holdfast.run where owner = $1 and cancel_requested and status = 'running'"
        ).encode()

    async def tidy(self) -> None:
        await self._readers.call(self._tidy)

    async def enlist(self, worker: Worker, dead_after: float) -> None:
        about = (worker.worker_id, worker.process.host, worker.process.started)
        worker_id, host, started = (wire.texts([to_text(word)]) for word in about)
        await self._readers.call(
            self._beat,
            (wire.TEXTS, wire.TEXTS, wire.BIGINTS, wire.TEXTS, wire.FLOAT),
            (worker_id, host, wire.bigints([worker.process.pid]), started, wire.float8(dead_after)),
        )

    async def discharge(self, worker_ids: Sequence[str]) -> None:
        gone = wire.texts([to_text(worker_id) for worker_id in worker_ids])
        await self._readers.call(self._discharge, (wire.TEXTS,), (gone,))

    async def dead_here(self) -> list[str]:
        """The workers of this host whose processes are gone, as text: known at once, however late they were heard."""
        result = await self._readers.call(self._workers, (wire.TEXT,), (self.here.encode(),))
        dead = []
        for n in range(result.ntuples):
            worker_id, host, pid, started = (result.get_value(n, column) for column in range(4))
            if is_alive(process(as_text(host), as_int(pid), as_text(started))) is False:
                dead.append(as_text(worker_id))
        return dead

    async def load(self, run_id: str, after: int) -> StoredRun | None:
        types, values = (wire.TEXT, wire.BIGINT), (to_text(run_id).encode(), wire.bigint(after))
        return stored_run(await self._readers.call(self._load, types, values), after)

    async def expires_in(self, run_id: str) -> float | None:
        """Seconds until the run may be purged."""
        result = await self._readers.call(self._expires_in, (wire.TEXT,), (to_text(run_id).encode(),))
        return float(as_text(result.get_value(0, 0))) if result.ntuples else None

    async def records(self, wanted: RunFilter) -> AsyncIterator[RunRecord]:
        """Page by page, so that a consumer who takes his time holds nothing up."""
        dead = await self.dead_here() if wanted.interrupted else []
        statuses = None if wanted.statuses is None else wire.texts([status.value for status in wanted.statuses])
        types = (
            *(wire.BIGINT, wire.BIGINT, wire.BOOL, wire.TEXT, wire.TEXTS),
            *(wire.TEXTS, wire.TEXT, wire.TEXT, wire.TEXT),
        )
        filters = [b"\1" if wanted.interrupted else b"\0", self.here.encode(), wire.texts(dead), statuses] + [
            None if name is None else to_text(name).encode()
            for name in (wanted.agent_name, wanted.caller_id, wanted.parent_run_id)
        ]
        after = -1
        while True:
            values = (wire.bigint(after), wire.bigint(PAGE), *filters)
            result = await self._readers.call(self._records, types, values)
            reader = RecordReader()
            for n in range(result.ntuples):
                yield reader.record(result.get_value(n, 0) or b"")
            if result.ntuples < PAGE:
                return
            after = as_int(result.get_value(PAGE - 1, 1))

    async def candidates(
        self, agents: Sequence[str], wanted: int, dead: Sequence[str], *, but_not: Sequence[int]
    ) -> list[int]:
        """The keys of runs that may be taken now, in the order in which they should be, and a few more than wanted."""
        types = (wire.TEXTS, wire.BIGINTS, wire.BIGINT, wire.TEXT, wire.TEXTS, wire.BIGINT)
        values = (
            *(wire.texts([to_text(agent) for agent in agents]), wire.bigints(but_not), wire.bigint(wanted + SPARE)),
            *(self.here.encode(), wire.texts(dead)),
        )
        result = await self._readers.call(self._candidates, types, (*values, wire.bigint(WINDOW)))
        if result.ntuples:
            seen, callers = as_int(result.get_value(0, 1)), as_int(result.get_value(0, 2))
            # The oldest runs of all tell which are the oldest of their callers, but not whether a younger run is the
            # first of a caller that is not among them.
            if seen >= WINDOW and callers < wanted:
                result = await self._readers.call(self._candidates, types, (*values, None))
        return [as_int(result.get_value(n, 0)) for n in range(result.ntuples)]

    async def cancels(self, worker_id: str) -> list[str]:
        result = await self._readers.call(self._cancels, (wire.TEXT,), (to_text(worker_id).encode(),))
        return [from_text(as_text(result.get_value(n, 0))) for n in range(result.ntuples)]
