"""Puts runs into a store, once for each request: the same id with another request is refused."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from holdfast.checkpoint.codec import Begin, decode, encode, encode_begin
from holdfast.checkpoint.errors import RunConflict, RunExists, RunNotFound, StoreError
from holdfast.checkpoint.factory import StoreCheckpoints
from holdfast.checkpoint.journal import Entry, EntryKind
from holdfast.checkpoint.progress import Progress
from holdfast.checkpoint.record import NewRun, RunRecord
from holdfast.checkpoint.store import get_record
from holdfast.checkpoint.workers import count_live_workers
from holdfast.clock import Clock
from holdfast.core.run.info import RunInfo
from holdfast.core.run.prompt import make_request_digest
from holdfast.core.validation import check_labels, to_utc
from holdfast.stores.redacting import stored_info

log: logging.Logger = logging.getLogger("holdfast.worker")

#: How often `submit` looks for a worker that takes runs of an agent, and how long it waits for the answer.
_CHECK_INTERVAL_S = 60.0
_CHECK_TIMEOUT_S = 1.0
#: Agents of live workers that a warning names at most.
_MAX_NAMES = 10
_NO_WORKER = "no live worker knows agent %s: its runs wait until `holdfast worker MODULE:APP` is started with it; %s"
#: The agents of which this process has warned: once is enough.
_warned: set[str] = set()


class Submitter:
    """Submits runs to one store, and finds those that were submitted before."""

    def __init__(self, checkpoints: StoreCheckpoints, clock: Clock) -> None:
        self._checkpoints, self._store, self._clock = checkpoints, checkpoints.store, clock
        #: By agent: when a submit looks for its workers again.
        self._check_at: dict[str, float] = {}

    async def submit(
        self,
        info: RunInfo,
        not_before: datetime | None = None,
        connection: Any = None,
        *,
        port_data: Mapping[str, Any] | None = None,
    ) -> str:
        """Queue a run for any worker. Durable when this returns. Idempotent for the same id, agent and input.

        Args:
            not_before: workers leave the run alone until then.
            connection: the user's connection to the store's database: the run exists only if its transaction commits.
            port_data: data of ports, such as the trace context of the caller.

        Raises:
            RunConflict: a run with this id has another agent, prompt or inputs.
            DefinitionError: `not_before` is not a time that stores can keep, or a label is one of holdfast's own.
        """
        check_labels(info.labels)
        if not_before is not None:
            not_before = to_utc("not_before", not_before)
        progress = Progress(port_data=dict(port_data or {}))
        new = make_queued_run(info, progress, [], not_before)
        if connection is not None:
            await self._submit_within(connection, new, info)
            return info.run_id
        while True:
            with suppress(RunExists):
                await self.create(new)
                return info.run_id
            with suppress(RunNotFound):  # it was removed meanwhile
                await self.get_same_request(info)
                return info.run_id

    async def create(self, new: NewRun) -> None:
        """Store a new run, and log a warning if no live worker takes runs of its agent.

        Raises:
            RunExists: there is a run with its id.
        """
        await self._store.create(new)
        await self._warn_without_worker(new.agent_name)

    async def _warn_without_worker(self, agent_name: str) -> None:
        """Log a warning if no live worker takes runs of the agent. Reads the workers once a minute for each agent."""
        now = self._clock.monotonic()
        if agent_name in self._checkpoints.claims.agents or now < self._check_at.get(agent_name, now):
            return
        self._check_at[agent_name] = now + _CHECK_INTERVAL_S
        with suppress(StoreError, TimeoutError):  # the run is stored: `submit` succeeds
            async with asyncio.timeout(_CHECK_TIMEOUT_S):
                known = count_live_workers(await self._store.list_workers())
            if known is not None and agent_name not in known and agent_name not in _warned:
                _warned.add(agent_name)
                log.warning(_NO_WORKER, agent_name, _format_names(known))

    async def _submit_within(self, connection: Any, new: NewRun, info: RunInfo) -> None:
        try:
            await self._store.create(new, connection=connection)
        except RunExists as exc:
            # The other run may not be committed: it cannot be loaded.
            if exc.begin is not None and not self.is_same_request(info, known := decode(exc.begin, Begin).info):
                raise RunConflict(info.run_id, known.agent_name) from None

    async def ensure(self, info: RunInfo) -> None:
        """Queue a run unless there is one with this id."""
        with suppress(RunExists):
            await self._store.create(make_queued_run(info, Progress(), []))

    async def get_same_request(self, info: RunInfo) -> RunRecord:
        """Return the record of the run with this id, if it has the same agent, prompt and inputs.

        Raises:
            RunConflict: it has another agent, prompt or inputs. RunNotFound: there is none.
        """
        record = await get_record(self._store, info.run_id)
        known = decode(record.info, RunInfo)
        if not known.request_digest:  # it was submitted by SQL
            known = decode((await self._store.load(info.run_id)).entries[0].body, Begin).info
        if not self.is_same_request(info, known):
            raise RunConflict(info.run_id, known.agent_name)
        return record

    def is_same_request(self, info: RunInfo, known: RunInfo) -> bool:
        """Whether `info` has the agent, prompt and inputs of the run `known`, which may be redacted."""
        if (known.agent_name, known.conversation) != (info.agent_name, info.conversation):
            return False
        asked = stored_info(self._store, info)
        digest = known.request_digest or make_request_digest(known.prompt, known.inputs)
        return digest in (make_request_digest(each.prompt, each.inputs) for each in (info, asked))


def _format_names(agents: Collection[str]) -> str:
    if not agents:
        return "no worker is alive"
    more = f" and {len(agents) - _MAX_NAMES} more" if len(agents) > _MAX_NAMES else ""
    return f"live workers know {', '.join(sorted(agents)[:_MAX_NAMES])}{more}"


def make_queued_run(
    info: RunInfo, progress: Progress, entries: list[Entry], not_before: datetime | None = None
) -> NewRun:
    """Make a queued run from its first entry and the copied `entries` of another run."""
    begin = Entry(seq=0, kind=EntryKind.BEGIN, body=encode_begin(info))
    copied = [msgspec.structs.replace(entry, seq=number) for number, entry in enumerate(entries, start=1)]
    return NewRun.create(info, encode(progress), [begin, *copied], not_before)
